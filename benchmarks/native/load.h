/* What the parts of the load generator share. One thread, so the state of the run is global. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* -- template.c: bytes with places for the number of the call ------------------------------------------------------ */

typedef struct {
    size_t at;
    unsigned plus; /* what is added to the number */
    bool varint;   /* four bytes of a protobuf varint instead of seven digits */
} place;

typedef struct {
    char *bytes; /* filled for one call or another */
    size_t size;
    place *places;
    size_t count;
    uint32_t number; /* what it is filled for */
} template;

template template_make(const char *prefix, size_t prefix_size, const char *file, const char *end, bool varints);
void template_fill(template *filled, uint32_t number);
/* The number of the call that these bytes belong to, by the first place; 0 if there is none. */
uint32_t template_number(const template *filled, const char *bytes, size_t size);

/* -- report.c: what is printed ------------------------------------------------------------------------------------- */

enum { USAGE = 2, WRONG = 3, LOST = 4, SILENT = 5 };

typedef struct {
    uint64_t calls;
    double seconds, cpu;
} figures;

void record(uint64_t nanoseconds);
void forget_records(void);
void stop_recording(void);
void report(figures measured);
_Noreturn void usage(const char *format, ...) __attribute__((format(printf, 1, 2)));
_Noreturn void fail(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));
_Noreturn void wrong_status(const char *expected, const char *got, size_t got_size);
_Noreturn void wrong_reply(const char *expected, size_t expected_size, const char *got, size_t there, size_t got_size);

/* -- connection.c: sockets, buffers, and the calls in flight on them ----------------------------------------------- */

typedef struct {
    char *bytes;
    size_t size, begin, end; /* what is in it lies from `begin` to `end` */
} buffer;

typedef struct {
    uint64_t began; /* 0: not in flight */
    uint32_t number;
} call;

typedef struct {
    int fd;
    bool waits_to_write, answered;
    buffer in, out;
    call *calls;             /* `load.in_flight` of them */
    uint32_t index, waiting; /* waiting: calls in flight */
    uint32_t oldest;         /* the call whose reply comes next, where they come in order */
    uint32_t *done;          /* the calls that have got their replies and are to be replaced */
    uint32_t done_count;
    size_t scanned; /* what of `in` was searched in vain */
    void *state;    /* the protocol's own */
} connection;

typedef struct {
    const char *name;
    bool in_order; /* replies always come in the order of the requests */
    /* Once, before anything is connected: read `load.request` and `load.reply`. */
    void (*prepare)(const char *request_file, const char *reply_file);
    void (*open)(connection *c);                /* say hello, begin the calls now or when that is answered */
    void (*send)(connection *c, uint32_t slot); /* put the request of this call into `out` */
    void (*receive)(connection *c);             /* take the whole replies from `in` */
    bool (*closed)(connection *c);              /* may be NULL: whether the end of the stream ended a reply */
} protocol;

extern const protocol line_protocol, frame_protocol, http_protocol, websocket_protocol, grpc_protocol;

typedef struct {
    const protocol *protocol;
    const char *host, *path;
    uint16_t port;
    uint32_t connections, in_flight;
    double seconds, warmup, patience;
    bool reconnect;
    template request, reply;
    size_t overhead;           /* bytes that the protocol adds to each request and reply, at most */
    uint32_t first_number;     /* the others follow, up to 8999999 */
    uint64_t now;              /* nanoseconds, when the latest bytes had come */
    bool holding, stopping;    /* no new calls: not before all connections have had a reply, not any more */
    uint32_t waiting;          /* calls in flight, on all connections */
    uint32_t opened, answered; /* connections; answered: that have had a reply */
    uint64_t calls;            /* replies since the last change of phase */
    int epoll;
} run;

extern run load;

uint64_t clock_now(void);
void connections_make(void);
/* Open the next ones, as those that are open get their first replies. */
void connections_open(void);
void connection_open(connection *c);
/* Take what has come; the calls that are answered then stand in `c->done`. */
void connection_receive(connection *c);
/* Replace the calls that are answered, and send whatever is to be sent, in one write. */
void connection_continue(connection *c);
void connections_continue(void);
void connection_begin_calls(connection *c);
/* Room for so many bytes to be sent, which are counted as written. */
char *out_room(connection *c, size_t size);
/* A reply; which call it answers is seen from its number, or from the order. It is all there, unless it has a size that
 * is wrong anyway. */
void reply_came(connection *c, const char *reply, size_t there, size_t size);
/* For protocols that know themselves which call it is, and have compared the reply. */
void call_done(connection *c, uint32_t slot);

/* gRPC: as much of HTTP/2 as unary calls need. The files are the protobuf messages, without the prefix of five bytes.
 *
 * Each reply is compared as it comes in, so none is put together. Its status is not decoded: where there is one that is
 * not OK, there is no whole reply either.
 */
#define _GNU_SOURCE
#include "load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION };
enum { END_STREAM = 1, ACK = 1, END_HEADERS = 4, PADDED = 8, REFUSED_STREAM = 7 };
enum { HEADER_TABLE_SIZE = 1, ENABLE_PUSH = 2, MAX_CONCURRENT_STREAMS = 3, INITIAL_WINDOW_SIZE = 4 };
enum {
    FRAME_HEAD = 9,
    PREFIX = 5,
    FRAME = 16384, /* the least that both sides must take, and all that this one asks for */
    WINDOW = 65535,
    MOST_WINDOW = 0x7fffffff,
    TABLE = 4096,
    MOST_HEADERS = 512,
    FIRST_NUMBER = 1 << 21, /* from here to 8999999 a varint has four bytes, a number seven digits */
};

typedef struct {
    uint32_t id; /* 0: not begun */
    int64_t window;
    size_t sent, got;
} stream;

typedef struct {
    stream *streams; /* of each call in flight */
    uint32_t *queue; /* a ring of the calls that are not wholly sent */
    uint32_t queue_begin, queue_count;
    uint32_t next_id, open, most_open, guess;
    int64_t window, first_window; /* what the server still takes, on the connection and on a new stream */
    size_t unacknowledged;
    bool greeted;
} session;

static void put_number(char *at, int size, uint32_t value) {
    while (size--) at[size] = (char)value, value >>= 8;
}

static uint32_t get_number(const char *at, int size) {
    uint32_t value = 0;
    for (int i = 0; i < size; i++) value = value << 8 | (unsigned char)at[i];
    return value;
}

/* Room for the payload of a frame, the head of which is written. */
static char *put_frame(connection *c, int type, int flags, uint32_t id, size_t size) {
    char *at = out_room(c, FRAME_HEAD + size);
    put_number(at, 3, (uint32_t)size);
    at[3] = (char)type;
    at[4] = (char)flags;
    put_number(at + 5, 4, id);
    return at + FRAME_HEAD;
}

/* -- what is the same for all calls -------------------------------------------------------------------------------- */

static char first_headers[MOST_HEADERS], later_headers[] = {'\x83', '\x86', '\xc1', '\xc0', '\xbf', '\xbe'};
static size_t first_size;

static void put_string(const char *text) {
    size_t size = strlen(text);
    if (size > 126 || first_size + size > sizeof first_headers - 8) usage("--path or --host: too long");
    first_headers[first_size++] = (char)size;
    memcpy(first_headers + first_size, text, size);
    first_size += size;
}

/* The first call of a connection has its headers in full and enters them into the table, as clients do; the later ones
 * name their places there. `:method: POST` and `:scheme: http` are in every table. */
static void make_headers(void) {
    char authority[127];
    snprintf(authority, sizeof authority, "%s:%u", load.host, load.port);
    first_headers[first_size++] = '\x83';
    first_headers[first_size++] = '\x86';
    const char *const fields[][2] = {
        {"\x44", load.path}, {"\x41", authority}, {"\x5f", "application/grpc"}, {"\x40", "te"}};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        first_headers[first_size++] = *fields[i][0];
        put_string(fields[i][1]);
    }
    put_string("trailers");
}

static template read_message(const char *file) {
    char prefix[PREFIX] = {0};
    template t = template_make(prefix, PREFIX, file, "", true);
    put_number(t.bytes + 1, 4, (uint32_t)(t.size - PREFIX));
    return t;
}

static void prepare(const char *request_file, const char *reply_file) {
    load.request = read_message(request_file);
    load.reply = read_message(reply_file);
    load.first_number = FIRST_NUMBER;
    load.overhead = MOST_HEADERS + FRAME_HEAD * (2 + load.request.size / FRAME);
    make_headers();
}

/* -- requests, as fast as the server's windows permit -------------------------------------------------------------- */

static void begin_stream(connection *c, session *s, stream *it) {
    bool first = s->next_id == 1;
    size_t size = first ? first_size : sizeof later_headers;
    *it = (stream){.id = s->next_id, .window = s->first_window};
    s->next_id += 2;
    s->open++;
    memcpy(put_frame(c, HEADERS, END_HEADERS, it->id, size), first ? first_headers : later_headers, size);
}

static bool send_data(connection *c, session *s, stream *it) {
    while (it->sent < load.request.size) {
        int64_t part = (int64_t)(load.request.size - it->sent);
        if (part > FRAME) part = FRAME;
        if (part > it->window) part = it->window;
        if (part > s->window) part = s->window;
        if (part <= 0) return false;
        bool last = it->sent + (size_t)part == load.request.size;
        char *at = put_frame(c, DATA, last ? END_STREAM : 0, it->id, (size_t)part);
        memcpy(at, load.request.bytes + it->sent, (size_t)part);
        it->sent += (size_t)part;
        it->window -= part;
        s->window -= part;
    }
    return true;
}

static void pump(connection *c) {
    session *s = c->state;
    while (s->queue_count) {
        uint32_t slot = s->queue[s->queue_begin];
        stream *it = &s->streams[slot];
        if (!it->id && s->open >= s->most_open) return;
        if (!it->id) begin_stream(c, s, it);
        template_fill(&load.request, c->calls[slot].number);
        if (!send_data(c, s, it)) return;
        if (++s->queue_begin == load.in_flight) s->queue_begin = 0;
        s->queue_count--;
    }
}

static void enqueue(session *s, uint32_t slot) {
    s->streams[slot].id = 0;
    s->queue[(s->queue_begin + s->queue_count++) % load.in_flight] = slot;
}

static void send_request(connection *c, uint32_t slot) {
    enqueue(c->state, slot);
    pump(c);
}

static void *allocate(size_t size) {
    void *memory = calloc(1, size);
    if (!memory) usage("not enough memory");
    return memory;
}

static void open_session(connection *c) {
    static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    session *s = c->state = allocate(sizeof *s);
    *s = (session){.next_id = 1, .most_open = UINT32_MAX, .window = WINDOW, .first_window = WINDOW};
    s->streams = allocate(load.in_flight * sizeof *s->streams);
    s->queue = allocate(load.in_flight * sizeof *s->queue);
    memcpy(out_room(c, sizeof preface - 1), preface, sizeof preface - 1);
    char *settings = put_frame(c, SETTINGS, 0, 0, 12);
    put_number(settings, 2, ENABLE_PUSH);
    put_number(settings + 2, 4, 0);
    put_number(settings + 6, 2, INITIAL_WINDOW_SIZE);
    put_number(settings + 8, 4, MOST_WINDOW);
    put_number(put_frame(c, WINDOW_UPDATE, 0, 0, 4), 4, MOST_WINDOW - WINDOW);
}

/* -- what comes back ----------------------------------------------------------------------------------------------- */

/* The call in flight with this stream, or none. Replies mostly come in order, so the next one is tried first. */
static uint32_t find_stream(session *s, const connection *c, uint32_t id) {
    for (uint32_t tried = 0; tried < load.in_flight; tried++, s->guess++) {
        if (s->guess >= load.in_flight) s->guess = 0;
        if (s->streams[s->guess].id == id && c->calls[s->guess].began) return s->guess++;
    }
    return load.in_flight;
}

/* A part of the reply to a call, or, without the end of a whole one, whatever came instead. */
static void take_part(connection *c, uint32_t slot, const char *bytes, size_t size) {
    stream *it = &((session *)c->state)->streams[slot];
    template_fill(&load.reply, c->calls[slot].number);
    if (size > load.reply.size - it->got || memcmp(bytes, load.reply.bytes + it->got, size))
        wrong_reply(load.reply.bytes + it->got, load.reply.size - it->got, bytes, size, size);
    it->got += size;
}

static void take_end(connection *c, uint32_t slot, const char *headers, size_t size) {
    session *s = c->state;
    template_fill(&load.reply, c->calls[slot].number);
    if (s->streams[slot].got < load.reply.size) wrong_status("a whole reply", headers, size);
    s->open--;
    call_done(c, slot);
}

/* A refused call may be made again, and clients do so: servers count streams for a moment after they have ended. */
static void take_reset(connection *c, uint32_t slot, uint32_t code) {
    session *s = c->state;
    stream *it = &s->streams[slot];
    if (code != REFUSED_STREAM || it->got) fail(WRONG, "the server reset the stream of a call, code %u", code);
    s->open--;
    if (it->sent < load.request.size) it->id = 0; /* it still stands in the queue */
    else enqueue(s, slot);
}

static void take_data(connection *c, uint32_t slot, int flags, const char *bytes, size_t size) {
    session *s = c->state;
    s->unacknowledged += size;
    if (s->unacknowledged > MOST_WINDOW / 2) {
        put_number(put_frame(c, WINDOW_UPDATE, 0, 0, 4), 4, (uint32_t)s->unacknowledged);
        s->unacknowledged = 0;
    }
    if (slot == load.in_flight) return;
    size_t padding = flags & PADDED && size ? (unsigned char)*bytes + 1u : 0;
    if (padding > size) fail(LOST, "connection lost: more padding than there are bytes");
    take_part(c, slot, bytes + (padding > 0), size - padding);
    if (flags & END_STREAM) take_end(c, slot, "no headers", 10);
}

static void take_settings(connection *c, const char *bytes, size_t size) {
    session *s = c->state;
    for (; size >= 6; size -= 6, bytes += 6) {
        uint32_t value = get_number(bytes + 2, 4);
        switch (get_number(bytes, 2)) {
        case HEADER_TABLE_SIZE:
            if (value < TABLE) fail(LOST, "connection lost: the server's table for headers is too small");
            break;
        case MAX_CONCURRENT_STREAMS: s->most_open = value; break;
        case INITIAL_WINDOW_SIZE:
            for (uint32_t i = 0; i < load.in_flight; i++) s->streams[i].window += (int64_t)value - s->first_window;
            s->first_window = value;
            break;
        }
    }
    put_frame(c, SETTINGS, ACK, 0, 0);
    if (s->greeted) return;
    s->greeted = true;
    connection_begin_calls(c); /* not before it is known how many the server takes */
}

static void widen(connection *c, uint32_t id, uint32_t slot, uint32_t more) {
    session *s = c->state;
    if (!id) s->window += more;
    else if (slot < load.in_flight) s->streams[slot].window += more;
}

static void take_frame(connection *c, int type, int flags, uint32_t id, const char *bytes, size_t size) {
    uint32_t slot = id ? find_stream(c->state, c, id) : load.in_flight;
    bool open = slot < load.in_flight;
    switch (type) {
    case DATA: take_data(c, slot, flags, bytes, size); break;
    case HEADERS:
        if (open && flags & END_STREAM) take_end(c, slot, bytes, size);
        break;
    case RST_STREAM:
        if (open) take_reset(c, slot, size < 4 ? 0 : get_number(bytes, 4));
        break;
    case SETTINGS:
        if (!(flags & ACK)) take_settings(c, bytes, size);
        break;
    case PING:
        if (!(flags & ACK)) memcpy(put_frame(c, PING, ACK, 0, size), bytes, size);
        break;
    case GOAWAY:
        fail(LOST, "connection lost: GOAWAY, code %u: %.*s", size < 8 ? 0 : get_number(bytes + 4, 4),
             size < 8 ? 0 : (int)size - 8, bytes + 8);
    case WINDOW_UPDATE:
        if (size >= 4) widen(c, id, slot, get_number(bytes, 4) & MOST_WINDOW);
        break;
    }
}

static void receive(connection *c) {
    buffer *in = &c->in;
    while (in->end - in->begin >= FRAME_HEAD) {
        const char *frame = in->bytes + in->begin;
        size_t size = get_number(frame, 3);
        if (size > FRAME) fail(LOST, "connection lost: a frame of %zu bytes, or no HTTP/2: %.20s", size, frame);
        if (in->end - in->begin < FRAME_HEAD + size) break;
        in->begin += FRAME_HEAD + size;
        take_frame(c, frame[3], frame[4], get_number(frame + 5, 4) & MOST_WINDOW, frame + FRAME_HEAD, size);
    }
    pump(c);
}

const protocol grpc_protocol = {
    .name = "grpc", .prepare = prepare, .open = open_session, .send = send_request, .receive = receive};

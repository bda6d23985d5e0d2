/* Sockets, their buffers, and the calls in flight on them. Nothing is allocated once the calls have begun. */
#define _GNU_SOURCE
#include "load.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { LAST_NUMBER = 8999999, SPARE = 16 * 1024, MOST_READ_AHEAD = 256 * 1024 };

/* More than a server is ready to queue would be refused in silence, and tried again only after a second. */
enum { MOST_OPENED_AT_ONCE = 64 };

static connection *connections;
static struct sockaddr_storage address;
static socklen_t address_size;

uint64_t clock_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void *allocate(size_t count, size_t size) {
    void *memory = calloc(count, size);
    if (!memory) usage("not enough memory");
    return memory;
}

static buffer make_buffer(size_t size) {
    return (buffer){.bytes = allocate(size, 1), .size = size};
}

static void resolve(void) {
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *found;
    int error = getaddrinfo(load.host, NULL, &hints, &found);
    if (error) usage("%s: %s", load.host, gai_strerror(error));
    memcpy(&address, found->ai_addr, address_size = found->ai_addrlen);
    in_port_t port = htons(load.port);
    if (found->ai_family == AF_INET6) ((struct sockaddr_in6 *)&address)->sin6_port = port;
    else ((struct sockaddr_in *)&address)->sin_port = port;
    freeaddrinfo(found);
}

void connections_make(void) {
    resolve();
    size_t reply = load.reply.size + load.overhead, all = reply * load.in_flight;
    size_t in = SPARE + (all < MOST_READ_AHEAD || all == reply ? all : reply + MOST_READ_AHEAD);
    size_t out = SPARE + (load.request.size + load.overhead) * load.in_flight;
    connections = allocate(load.connections, sizeof *connections);
    for (uint32_t i = 0; i < load.connections; i++) {
        connection *c = &connections[i];
        c->index = i;
        c->calls = allocate(load.in_flight, sizeof *c->calls);
        c->done = allocate(load.in_flight, sizeof *c->done);
        c->in = make_buffer(in);
        c->out = make_buffer(out);
    }
}

void connections_open(void) {
    while (load.opened < load.connections && load.opened - load.answered < MOST_OPENED_AT_ONCE)
        connection_open(&connections[load.opened++]);
}

/* -- bytes --------------------------------------------------------------------------------------------------------- */

_Noreturn static void lost(const char *why) {
    fail(LOST, "connection lost: %s", why);
}

static void watch(connection *c, int operation) {
    struct epoll_event event = {.events = EPOLLIN | (c->waits_to_write ? EPOLLOUT : 0), .data.ptr = c};
    if (epoll_ctl(load.epoll, operation, c->fd, &event)) lost(strerror(errno));
}

char *out_room(connection *c, size_t size) {
    buffer *out = &c->out;
    if (out->end + size > out->size) {
        memmove(out->bytes, out->bytes + out->begin, out->end - out->begin);
        out->end -= out->begin;
        out->begin = 0;
        if (out->end + size > out->size) lost("the peer asks without end and does not read");
    }
    out->end += size;
    return out->bytes + out->end - size;
}

/* Send what can be sent; a socket that is still being connected takes nothing yet. */
static bool flush(connection *c) {
    buffer *out = &c->out;
    while (out->begin < out->end) {
        ssize_t sent = send(c->fd, out->bytes + out->begin, out->end - out->begin, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && errno == EAGAIN) return false;
        if (sent < 0) lost(strerror(errno));
        out->begin += (size_t)sent;
    }
    out->begin = out->end = 0;
    return true;
}

static void flush_and_watch(connection *c) {
    bool waits = !flush(c);
    if (waits == c->waits_to_write) return;
    c->waits_to_write = waits;
    watch(c, EPOLL_CTL_MOD);
}

/* Whether the stream goes on. */
static bool fill(connection *c) {
    buffer *in = &c->in;
    if (in->begin == in->end) in->begin = in->end = 0;
    if (in->begin && in->size - in->end < SPARE / 2) {
        memmove(in->bytes, in->bytes + in->begin, in->end -= in->begin);
        in->begin = 0;
    }
    /* There is room for the longest right reply. */
    if (in->end == in->size) wrong_reply(load.reply.bytes, load.reply.size, in->bytes, in->end, in->end);
    ssize_t got = recv(c->fd, in->bytes + in->end, in->size - in->end, 0);
    if (got < 0 && errno != EAGAIN && errno != EINTR) lost(strerror(errno));
    if (got > 0) in->end += (size_t)got;
    return got != 0;
}

/* -- calls --------------------------------------------------------------------------------------------------------- */

/* Of all calls in flight, on whichever connections, each takes numbers that far apart, so none that another one takes.
 * So a number says where its call is, and a reply that went to the wrong connection is noticed. */
static uint32_t all_slots(void) {
    return load.connections * load.in_flight;
}

static void begin_call(connection *c, uint32_t slot) {
    call *it = &c->calls[slot];
    uint32_t first = load.first_number + c->index * load.in_flight + slot;
    it->number = it->number && it->number <= LAST_NUMBER - all_slots() ? it->number + all_slots() : first;
    it->began = load.now;
    c->waiting++;
    load.waiting++;
    load.protocol->send(c, slot);
}

void connection_begin_calls(connection *c) {
    c->oldest = 0;
    for (uint32_t slot = 0; slot < load.in_flight; slot++) begin_call(c, slot);
}

void call_done(connection *c, uint32_t slot) {
    record(load.now - c->calls[slot].began);
    c->calls[slot].began = 0;
    c->done[c->done_count++] = slot;
    c->waiting--;
    load.waiting--;
    load.calls++;
    if (!c->answered) {
        c->answered = true;
        load.answered++;
    }
}

/* The call in flight on this connection that has such a number; if there is none, any of those in flight. */
static uint32_t find_call(connection *c, uint32_t number) {
    uint32_t slot = (number - load.first_number) % all_slots() - c->index * load.in_flight;
    if (slot < load.in_flight && c->calls[slot].number == number && c->calls[slot].began) return slot;
    for (slot = 0; slot < load.in_flight - 1 && !c->calls[slot].began;) slot++;
    return slot;
}

void reply_came(connection *c, const char *reply, size_t there, size_t size) {
    bool in_order = load.protocol->in_order || !load.reply.count;
    uint32_t slot = in_order ? c->oldest : find_call(c, template_number(&load.reply, reply, there));
    if (in_order && ++c->oldest == load.in_flight) c->oldest = 0;
    if (!c->calls[slot].began)
        fail(WRONG, "a reply that nobody asked for: %.*s", there < 200 ? (int)there : 200, reply);
    template_fill(&load.reply, c->calls[slot].number);
    if (size != load.reply.size || memcmp(reply, load.reply.bytes, size))
        wrong_reply(load.reply.bytes, load.reply.size, reply, there, size);
    call_done(c, slot);
}

void connection_open(connection *c) {
    c->fd = socket(address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (c->fd < 0) lost(strerror(errno));
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    if (connect(c->fd, (struct sockaddr *)&address, address_size) && errno != EINPROGRESS) lost(strerror(errno));
    c->in.begin = c->in.end = c->out.begin = c->out.end = c->scanned = 0;
    load.protocol->open(c);
    c->waits_to_write = !flush(c);
    watch(c, EPOLL_CTL_ADD);
}

void connection_receive(connection *c) {
    bool goes_on = fill(c);
    load.now = clock_now();
    load.protocol->receive(c);
    if (goes_on) return;
    if (load.protocol == &http_protocol && !load.reconnect) lost("the peer closed it; is --reconnect missing?");
    if (!load.protocol->closed || !load.protocol->closed(c)) lost("the peer closed it");
}

static void replace_done(connection *c) {
    uint32_t count = c->done_count;
    c->done_count = 0;
    load.now = clock_now();
    if (load.reconnect) {
        close(c->fd);
        connection_open(c);
        return;
    }
    for (uint32_t i = 0; i < count; i++) begin_call(c, c->done[i]);
}

void connection_continue(connection *c) {
    if (load.stopping) c->done_count = 0;
    if (load.stopping && !c->waiting) {
        close(c->fd);
        return;
    }
    if (c->done_count && !load.holding) replace_done(c);
    flush_and_watch(c);
}

void connections_continue(void) {
    for (uint32_t i = 0; i < load.connections; i++) connection_continue(&connections[i]);
}

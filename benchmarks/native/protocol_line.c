/* Messages that end with a line feed; or requests that are binary frames, whose ends are seen from their heads. */
#include "load.h"

#include <string.h>

static void prepare(const char *request_file, const char *reply_file) {
    load.request = template_make("", 0, request_file, "\n", false);
    load.reply = template_make("", 0, reply_file, "\n", false);
}

static void prepare_frames(const char *request_file, const char *reply_file) {
    load.request = template_make("", 0, request_file, "", false);
    load.reply = template_make("", 0, reply_file, "\n", false);
}

static void send_request(connection *c, uint32_t slot) {
    template_fill(&load.request, c->calls[slot].number);
    memcpy(out_room(c, load.request.size), load.request.bytes, load.request.size);
}

static void receive(connection *c) {
    buffer *in = &c->in;
    for (const char *end; (end = memchr(in->bytes + in->begin + c->scanned, '\n', in->end - in->begin - c->scanned));) {
        const char *line = in->bytes + in->begin;
        size_t size = (size_t)(end + 1 - line);
        c->scanned = 0;
        in->begin += size;
        reply_came(c, line, size, size);
    }
    c->scanned = in->end - in->begin;
}

const protocol line_protocol = {
    .name = "line", .prepare = prepare, .open = connection_begin_calls, .send = send_request, .receive = receive};

/* Replies are lines: a server sends frames only to those that have said that they take them. */
const protocol frame_protocol = {
    .name = "frame",
    .prepare = prepare_frames,
    .open = connection_begin_calls,
    .send = send_request,
    .receive = receive,
};

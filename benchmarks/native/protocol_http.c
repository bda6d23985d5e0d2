/* HTTP/1: the request file is the whole request, the reply file the body. Replies have a Content-Length, or end with
 * the connection. */
#define _GNU_SOURCE
#include "load.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

typedef struct {
    size_t size; /* with the empty line; 0 while it is not all there */
    bool length_known;
    size_t length; /* of the body */
} head;

static void prepare(const char *request_file, const char *reply_file) {
    load.request = template_make("", 0, request_file, "", false);
    load.reply = template_make("", 0, reply_file, "", false);
    load.overhead = 1024; /* the heads of most replies; there is spare room for one that is longer */
}

static void send_request(connection *c, uint32_t slot) {
    template_fill(&load.request, c->calls[slot].number);
    memcpy(out_room(c, load.request.size), load.request.bytes, load.request.size);
}

/* Where the field's value begins, if the line is this field. */
static const char *field(const char *line, const char *end, const char *name) {
    size_t size = strlen(name);
    return (size_t)(end - line) > size && line[size] == ':' && !strncasecmp(line, name, size) ? line + size + 1 : NULL;
}

static head read_head(const char *bytes, size_t size) {
    const char *end = memmem(bytes, size, "\r\n\r\n", 4);
    head found = {0};
    if (!end) return found;
    found.size = (size_t)(end + 4 - bytes);
    if (found.size < 13 || memcmp(bytes, "HTTP/1.", 7) || memcmp(bytes + 8, " 200", 4))
        wrong_status("HTTP/1.1 200", bytes, size);
    for (const char *line = bytes; line < end;) {
        line = (const char *)memchr(line, '\n', (size_t)(end + 2 - line)) + 1;
        const char *value;
        if ((value = field(line, end, "Content-Length"))) {
            found.length_known = true;
            found.length = strtoull(value, NULL, 10);
        } else if (field(line, end, "Transfer-Encoding")) {
            fail(WRONG, "a reply in chunks, which this load generator does not read");
        }
    }
    return found;
}

static void receive(connection *c) {
    buffer *in = &c->in;
    while (in->begin < in->end) {
        const char *bytes = in->bytes + in->begin;
        size_t size = in->end - in->begin;
        head found = read_head(bytes, size);
        if (!found.size || !found.length_known) return;
        size_t body = size - found.size;
        if (body < found.length && found.length <= in->size - found.size) return;
        if (body > found.length) body = found.length;
        in->begin += found.size + body;
        reply_came(c, bytes + found.size, body, found.length);
    }
}

static bool closed(connection *c) {
    const char *bytes = c->in.bytes + c->in.begin;
    size_t size = c->in.end - c->in.begin;
    head found = read_head(bytes, size);
    if (!found.size || found.length_known) return false;
    reply_came(c, bytes + found.size, size - found.size, size - found.size);
    return true;
}

const protocol http_protocol = {.name = "http",
                                .in_order = true,
                                .prepare = prepare,
                                .open = connection_begin_calls,
                                .send = send_request,
                                .receive = receive,
                                .closed = closed};

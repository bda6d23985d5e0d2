/* WebSocket: each request a masked text frame, each reply a frame of its own. */
#define _GNU_SOURCE
#include "load.h"

#include <stdio.h>
#include <string.h>

enum { TEXT = 1, BINARY = 2, CLOSE = 8, PING = 9, PONG = 10, FINAL = 0x80, MASKED = 0x80, MOST_HEAD = 14 };

static void prepare(const char *request_file, const char *reply_file) {
    load.request = template_make("", 0, request_file, "", false);
    load.reply = template_make("", 0, reply_file, "", false);
    load.overhead = MOST_HEAD;
}

/* -- the handshake, with the key and the answer to it that RFC 6455 has for an example ----------------------------- */

static const char key[] = "dGhlIHNhbXBsZSBub25jZQ==", answer[] = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

static void open_stream(connection *c) {
    char text[1024];
    int size = snprintf(text, sizeof text,
                        "GET %s HTTP/1.1\r\nHost: %s:%u\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                        "Sec-WebSocket-Key: %s\r\nSec-WebSocket-Version: 13\r\n\r\n",
                        load.path, load.host, load.port, key);
    if ((size_t)size >= sizeof text) usage("--path: too long");
    memcpy(out_room(c, (size_t)size), text, (size_t)size);
    c->state = NULL; /* until the answer has come */
}

static bool shake_hands(connection *c) {
    const char *bytes = c->in.bytes + c->in.begin;
    size_t size = c->in.end - c->in.begin;
    const char *end = memmem(bytes, size, "\r\n\r\n", 4);
    if (!end) return false;
    if (memcmp(bytes, "HTTP/1.1 101", 12)) wrong_status("HTTP/1.1 101", bytes, size);
    if (!memmem(bytes, (size_t)(end - bytes), answer, strlen(answer))) wrong_status(answer, bytes, size);
    c->in.begin += (size_t)(end + 4 - bytes);
    c->state = c;
    connection_begin_calls(c);
    return true;
}

/* -- frames -------------------------------------------------------------------------------------------------------- */

static void send_frame(connection *c, int kind, uint32_t mask, const char *bytes, size_t size) {
    unsigned char head[MOST_HEAD];
    size_t at = 0, length_bytes = size < 126 ? 0 : size < 65536 ? 2 : 8;
    head[at++] = (unsigned char)(FINAL | kind);
    head[at++] = (unsigned char)(MASKED | (length_bytes == 0 ? size : length_bytes == 2 ? 126 : 127));
    while (length_bytes--) head[at++] = (unsigned char)(size >> 8 * length_bytes);
    memcpy(head + at, &mask, 4);
    at += 4;
    char *out = out_room(c, at + size);
    memcpy(out, head, at);
    out += at;
    char masks[4];
    memcpy(masks, &mask, 4);
    for (size_t i = 0; i < size; i++) out[i] = (char)(bytes[i] ^ masks[i & 3]);
}

static void send_request(connection *c, uint32_t slot) {
    uint32_t number = c->calls[slot].number;
    template_fill(&load.request, number);
    send_frame(c, TEXT, number * 2654435761u, load.request.bytes, load.request.size);
}

static void take_frame(connection *c, unsigned char first, const char *payload, size_t there, size_t size) {
    switch (first) {
    case FINAL | TEXT:
    case FINAL | BINARY: reply_came(c, payload, there, size); break;
    case FINAL | PING: send_frame(c, PONG, 0, payload, size); break;
    case FINAL | PONG: break;
    case FINAL | CLOSE:
        fail(LOST, "connection lost: the peer closed it, status %d: %.*s",
             size < 2 ? 0 : (unsigned char)payload[0] << 8 | (unsigned char)payload[1], size < 2 ? 0 : (int)size - 2,
             payload + 2);
    default: fail(WRONG, "a frame that begins with 0x%02x, which this load generator does not read", first);
    }
}

static void receive(connection *c) {
    buffer *in = &c->in;
    if (!c->state && !shake_hands(c)) return;
    while (in->end - in->begin >= 2) {
        const unsigned char *frame = (const unsigned char *)in->bytes + in->begin;
        size_t there = in->end - in->begin, size = frame[1], head = 2 + (size < 126 ? 0 : size == 126 ? 2 : 8);
        if (size & MASKED) fail(WRONG, "a masked frame from the server");
        if (there < head) return;
        if (head > 2) size = 0;
        for (size_t i = 2; i < head; i++) size = size << 8 | frame[i];
        there -= head;
        if (there < size && size <= in->size - head) return;
        if (there > size) there = size;
        in->begin += head + there;
        take_frame(c, frame[0], (const char *)frame + head, there, size);
    }
}

const protocol websocket_protocol = {
    .name = "websocket", .prepare = prepare, .open = open_stream, .send = send_request, .receive = receive};

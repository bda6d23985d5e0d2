/* The figures, or what went wrong, as one line of JSON. */
#include "load.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A histogram of nanoseconds: 64 buckets for each power of two, so that none is wider than 1/64 of what is in it. */
enum { FINE_BITS = 6, FINE = 1 << FINE_BITS, BUCKETS = FINE * 48 };

static uint64_t counts[BUCKETS], recorded, longest;
static bool stopped;

void record(uint64_t nanoseconds) {
    if (stopped) return;
    unsigned shift = 0;
    if (nanoseconds >= 2 * FINE) shift = 63 - (unsigned)__builtin_clzll(nanoseconds) - FINE_BITS;
    size_t bucket = shift * FINE + (nanoseconds >> shift);
    counts[bucket < BUCKETS ? bucket : BUCKETS - 1]++;
    recorded++;
    if (nanoseconds > longest) longest = nanoseconds;
}

void forget_records(void) {
    memset(counts, 0, sizeof counts);
    recorded = longest = 0;
}

void stop_recording(void) {
    stopped = true;
}

/* The middle of the bucket that such a share of all are in or below, in microseconds. */
static double quantile(double share) {
    uint64_t rank = (uint64_t)(share * (double)(recorded - 1)), seen = 0;
    size_t bucket = 0;
    while (bucket < BUCKETS - 1 && (seen += counts[bucket]) <= rank) bucket++;
    unsigned shift = bucket < 2 * FINE ? 0 : (unsigned)(bucket / FINE - 1);
    double low = (double)((bucket - shift * FINE) << shift), middle = low + (double)((1ull << shift) - 1) / 2;
    return (middle < (double)longest ? middle : (double)longest) / 1e3;
}

void report(figures measured) {
    printf("{\"calls\": %llu, \"seconds\": %.6f, \"rate\": %.3f, \"latency_us\": {\"p50\": %.2f, \"p90\": %.2f, "
           "\"p99\": %.2f, \"p999\": %.2f, \"max\": %.2f}, \"wrong\": 0, \"cpu\": %.3f}\n",
           (unsigned long long)measured.calls, measured.seconds, (double)measured.calls / measured.seconds,
           quantile(0.5), quantile(0.9), quantile(0.99), quantile(0.999), (double)longest / 1e3, measured.cpu);
}

static void print_json_string(const char *text, size_t size) {
    putchar('"');
    for (size_t i = 0; i < size; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c == '"' || c == '\\') printf("\\%c", c);
        else if (c < ' ' || c > '~') printf("\\u%04x", c);
        else putchar(c);
    }
    putchar('"');
}

_Noreturn static void end(int status, const char *error, size_t size) {
    printf("{\"wrong\": %d, \"error\": ", status == WRONG);
    print_json_string(error, size);
    printf("}\n");
    exit(status);
}

_Noreturn void usage(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("load: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(USAGE);
}

_Noreturn void fail(int status, const char *format, ...) {
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    int size = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    end(status, text, (size_t)size < sizeof text ? (size_t)size : sizeof text - 1);
}

enum { SHOWN = 200, BEFORE = 40 };

static size_t put(char *text, size_t at, const char *bytes, size_t size) {
    if (size > SHOWN) size = SHOWN;
    memcpy(text + at, bytes, size);
    return at + size;
}

_Noreturn void wrong_status(const char *expected, const char *got, size_t got_size) {
    char text[2 * SHOWN + 100];
    size_t size = (size_t)sprintf(text, "expected %s, got: ", expected);
    end(WRONG, text, put(text, size, got, got_size));
}

_Noreturn void wrong_reply(const char *expected, size_t expected_size, const char *got, size_t there, size_t got_size) {
    char text[2 * SHOWN + 100];
    size_t same = 0, from = 0;
    while (same < expected_size && same < there && expected[same] == got[same]) same++;
    if (same > SHOWN - BEFORE) from = same - BEFORE; /* the difference must be in what is shown */
    size_t size = from ? (size_t)sprintf(text, "from byte %zu on, ", from) : 0;
    size += (size_t)sprintf(text + size, "expected (%zu bytes): ", expected_size);
    size = put(text, size, expected + from, expected_size - from);
    size += (size_t)sprintf(text + size, "; got (%zu bytes): ", got_size);
    end(WRONG, text, put(text, size, got + from, there - from));
}

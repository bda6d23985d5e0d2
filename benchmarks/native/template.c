/* Requests and replies as templates: the same bytes for every call but for its number. */
#define _GNU_SOURCE
#include "load.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIGITS = 7, VARINT = 4, MOST_PLACES = 4096 };

static const struct {
    const char *mark;
    size_t size;
    place place;
} marks[] = {
    {"@@@@@@@", DIGITS, {.plus = 0}},
    {"#######", DIGITS, {.plus = 1}},
    {"%%%%", VARINT, {.plus = 0, .varint = true}},
    {"&&&&", VARINT, {.plus = 1, .varint = true}},
};

static void append_file(template *t, const char *name) {
    FILE *file = fopen(name, "rb");
    if (!file) usage("%s: %s", name, strerror(errno));
    size_t got, space = t->size;
    do {
        space += 1 << 16;
        t->bytes = realloc(t->bytes, space + 16); /* some more for what may be appended */
        if (!t->bytes) usage("%s: too large", name);
        got = fread(t->bytes + t->size, 1, space - t->size, file);
        t->size += got;
    } while (t->size == space);
    fclose(file);
}

static void find_places(template *t, bool varints) {
    t->places = calloc(MOST_PLACES, sizeof *t->places);
    for (size_t at = 0; at < t->size;) {
        size_t step = 1;
        for (size_t i = 0; i < sizeof marks / sizeof *marks && step == 1; i++) {
            bool here = t->size - at >= marks[i].size && !memcmp(t->bytes + at, marks[i].mark, marks[i].size);
            if (!here || (marks[i].place.varint && !varints)) continue;
            if (t->count == MOST_PLACES) usage("more than %d places in a template", MOST_PLACES);
            t->places[t->count] = marks[i].place;
            t->places[t->count++].at = at;
            step = marks[i].size;
        }
        at += step;
    }
}

template template_make(const char *prefix, size_t prefix_size, const char *file, const char *end, bool varints) {
    template t = {.bytes = malloc(prefix_size + 1), .size = prefix_size};
    memcpy(t.bytes, prefix, prefix_size);
    append_file(&t, file);
    size_t end_size = strlen(end);
    if (end_size && (t.size < end_size || memcmp(t.bytes + t.size - end_size, end, end_size))) {
        memcpy(t.bytes + t.size, end, end_size);
        t.size += end_size;
    }
    find_places(&t, varints);
    return t;
}

void template_fill(template *t, uint32_t number) {
    if (t->number == number) return;
    t->number = number;
    for (size_t i = 0; i < t->count; i++) {
        char *at = t->bytes + t->places[i].at;
        uint32_t left = number + t->places[i].plus;
        if (t->places[i].varint) {
            for (int byte = 0; byte < VARINT; byte++, left >>= 7) at[byte] = (char)(left | 128);
            at[VARINT - 1] &= 127; /* the last one */
        } else {
            for (int digit = DIGITS; digit--; left /= 10) at[digit] = (char)('0' + left % 10);
        }
    }
}

uint32_t template_number(const template *t, const char *bytes, size_t size) {
    if (!t->count || t->places[0].varint || size < t->places[0].at + DIGITS) return 0;
    uint32_t number = 0;
    for (int digit = 0; digit < DIGITS; digit++) {
        unsigned value = (unsigned char)bytes[t->places[0].at + (size_t)digit] - '0';
        if (value > 9) return 0;
        number = number * 10 + value;
    }
    return number - t->places[0].plus;
}

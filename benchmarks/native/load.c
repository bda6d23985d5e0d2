/* A closed-loop load generator: each connection keeps so many calls in flight, each reply is compared with what is
 * expected.
 *
 *   load --port P --protocol line|frame|http|websocket|grpc --request FILE --reply FILE [--host H] [--path /x]
 *        [--connections N] [--in-flight M] [--seconds S] [--warmup W] [--patience T] [--reconnect]
 *
 * `@@@@@@@` in the request stands for the number of the call, seven digits; in the reply `@@@@@@@` stands for the same
 * number and `#######` for the next one. The first of them in the reply says which call it answers. With none there,
 * replies must come in order. For grpc `%%%%` and `&&&&` are the same two numbers as protobuf varints.
 *
 * Prints one line of JSON. Exit status: 0; 2 usage; 3 wrong reply; 4 connection refused or lost; 5 no reply for T
 * seconds (10 if nothing is said).
 */
#define _GNU_SOURCE
#include "load.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum { FIRST_NUMBER = 1000000, MOST_CALLS = 4000000, EVENTS = 512 };

static const uint64_t SECOND = 1000000000;

static const protocol *const protocols[] = {&line_protocol, &frame_protocol, &http_protocol, &websocket_protocol,
                                         &grpc_protocol};

run load = {
    .protocol = &line_protocol,
    .host = "127.0.0.1",
    .path = "/",
    .connections = 1,
    .in_flight = 1,
    .seconds = 1,
    .warmup = 0.2,
    .patience = 10,
    .first_number = FIRST_NUMBER,
};

/* -- the command line ---------------------------------------------------------------------------------------------- */

static double number(const char *name, const char *text, double least, double most) {
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || !(value >= least && value <= most)) usage("--%s: %s", name, text);
    return value;
}

static const protocol *find_protocol(const char *name) {
    for (size_t i = 0; i < sizeof protocols / sizeof *protocols; i++)
        if (!strcmp(protocols[i]->name, name)) return protocols[i];
    usage("--protocol: %s", name);
}

enum { HOST, PORT, PATH, PROTOCOL, CONNECTIONS, IN_FLIGHT, SECONDS, WARMUP, PATIENCE, REQUEST, REPLY, RECONNECT };
static const struct option options[] = {
    {"host", required_argument, NULL, HOST},
    {"port", required_argument, NULL, PORT},
    {"path", required_argument, NULL, PATH},
    {"protocol", required_argument, NULL, PROTOCOL},
    {"connections", required_argument, NULL, CONNECTIONS},
    {"in-flight", required_argument, NULL, IN_FLIGHT},
    {"seconds", required_argument, NULL, SECONDS},
    {"warmup", required_argument, NULL, WARMUP},
    {"patience", required_argument, NULL, PATIENCE},
    {"request", required_argument, NULL, REQUEST},
    {"reply", required_argument, NULL, REPLY},
    {"reconnect", no_argument, NULL, RECONNECT},
    {0},
};

static void read_arguments(int count, char **arguments) {
    const char *request = NULL, *reply = NULL;
    for (int option, at = 0; (option = getopt_long(count, arguments, "", options, &at)) != -1;) {
        const char *name = options[at].name;
        switch (option) {
        case HOST: load.host = optarg; break;
        case PORT: load.port = (uint16_t)number(name, optarg, 1, 65535); break;
        case PATH: load.path = optarg; break;
        case PROTOCOL: load.protocol = find_protocol(optarg); break;
        case CONNECTIONS: load.connections = (uint32_t)number(name, optarg, 1, MOST_CALLS); break;
        case IN_FLIGHT: load.in_flight = (uint32_t)number(name, optarg, 1, MOST_CALLS); break;
        case SECONDS: load.seconds = number(name, optarg, 0, 1e6); break;
        case WARMUP: load.warmup = number(name, optarg, 0, 1e6); break;
        case PATIENCE: load.patience = number(name, optarg, 0, 1e6); break;
        case REQUEST: request = optarg; break;
        case REPLY: reply = optarg; break;
        case RECONNECT: load.reconnect = true; break;
        default: exit(USAGE);
        }
    }
    if (optind < count) usage("unexpected: %s", arguments[optind]);
    if (!load.port || !request || !reply) usage("--port, --request and --reply must be given");
    if ((double)load.connections * load.in_flight > MOST_CALLS) usage("more than %d calls in flight", MOST_CALLS);
    if (load.reconnect && (load.in_flight > 1 || load.protocol != &http_protocol))
        usage("--reconnect is for http, with one call in flight");
    load.protocol->prepare(request, reply);
}

static void allow_files(void) {
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_max < load.connections + 16)
        usage("no more than %llu files may be open", (unsigned long long)limit.rlim_max);
}

/* -- the run ------------------------------------------------------------------------------------------------------- */

static enum { CONNECTING, WARMING, TIMING, STOPPING } phase;
static uint64_t ends, started, started_cpu, last_progress;
static figures measured;
static int timer;

static uint64_t cpu_time(void) {
    struct timespec used;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return (uint64_t)used.tv_sec * SECOND + (uint64_t)used.tv_nsec;
}

static void enter(int next, double seconds) {
    phase = next;
    ends = load.now + (uint64_t)(seconds * (double)SECOND);
}

/* Replies have come. The timed part lasts from one reply, which does not count, to another, which does: so long calls
 * are not cut off at either end. The warm-up begins when each connection has had a reply. */
static void progress(void) {
    static uint32_t answered;
    if (phase != CONNECTING || load.answered > answered) last_progress = load.now;
    answered = load.answered;
    if (phase == CONNECTING) connections_open();
    if (phase == CONNECTING && load.answered == load.connections) {
        load.holding = false;
        connections_continue();
        enter(WARMING, load.warmup);
    }
    if (phase == WARMING && load.now >= ends) {
        forget_records();
        load.calls = 0;
        started = load.now;
        started_cpu = cpu_time();
        enter(TIMING, load.seconds);
    } else if (phase == TIMING && load.now >= ends) {
        measured.calls = load.calls;
        measured.seconds = (double)(load.now - started) / (double)SECOND;
        measured.cpu = (double)(cpu_time() - started_cpu) / (double)(load.now - started);
        phase = STOPPING;
        load.stopping = true;
        stop_recording();
    }
}

static void tick(void) {
    uint64_t ticks;
    if (read(timer, &ticks, sizeof ticks) < 0) return;
    if ((double)(clock_now() - last_progress) < load.patience * (double)SECOND) return;
    if (phase == CONNECTING)
        fail(SILENT, "%u of %u connections have had no reply, and no other one for %g s",
             load.connections - load.answered, load.connections, load.patience);
    fail(SILENT, "no reply for %g s, though %u calls wait for one", load.patience, load.waiting);
}

/* Tells that time passes although nothing comes; a time limit in each epoll_wait would cost more. */
static void start_ticking(void) {
    timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    struct itimerspec each = {.it_interval.tv_nsec = SECOND / 4, .it_value.tv_nsec = SECOND / 4};
    timerfd_settime(timer, 0, &each, NULL);
    epoll_ctl(load.epoll, EPOLL_CTL_ADD, timer, &(struct epoll_event){.events = EPOLLIN});
}

static void run_until_all_answered(void) {
    static struct epoll_event events[EVENTS];
    while (!load.stopping || load.waiting) {
        int count = epoll_wait(load.epoll, events, EVENTS, -1);
        if (count < 0 && errno != EINTR) fail(LOST, "epoll_wait: %s", strerror(errno));
        for (int i = 0; i < count; i++) {
            connection *c = events[i].data.ptr;
            if (!c) {
                tick();
                continue;
            }
            if (events[i].events & ~(uint32_t)EPOLLOUT) connection_receive(c);
            if (c->done_count) progress();
            connection_continue(c);
        }
    }
}

int main(int count, char **arguments) {
    read_arguments(count, arguments);
    allow_files();
    load.epoll = epoll_create1(EPOLL_CLOEXEC);
    start_ticking();
    last_progress = load.now = clock_now();
    load.holding = !load.reconnect; /* the peer may close a connection that has had its reply */
    connections_make();
    connections_open();
    run_until_all_answered();
    report(measured);
    return 0;
}

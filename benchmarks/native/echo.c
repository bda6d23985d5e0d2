/* A bare echo: sends back whatever comes, on 127.0.0.1, until SIGTERM. Prints its port as {"port": N}. */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum { EVENTS = 512, READ = 256 * 1024 };

typedef struct {
    int fd;
    char *rest; /* what could not be sent yet; nothing is read meanwhile */
    size_t begin, end;
} connection;

static int epoll;

static void check(int result, const char *what) {
    if (result >= 0) return;
    perror(what);
    exit(1);
}

static void watch(connection *c, int operation, uint32_t events) {
    check(epoll_ctl(epoll, operation, c->fd, &(struct epoll_event){.events = events, .data.ptr = c}), "epoll_ctl");
}

static void drop(connection *c) {
    close(c->fd);
    free(c->rest);
    free(c);
}

/* How much went out; negative when the connection is lost. */
static ssize_t send_some(int fd, const char *bytes, size_t size) {
    size_t done = 0;
    while (done < size) {
        ssize_t sent = send(fd, bytes + done, size - done, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && errno == EAGAIN) break;
        if (sent < 0) return -1;
        done += (size_t)sent;
    }
    return (ssize_t)done;
}

static void receive(connection *c) {
    static char bytes[READ];
    ssize_t got = recv(c->fd, bytes, sizeof bytes, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    ssize_t sent = got > 0 ? send_some(c->fd, bytes, (size_t)got) : -1;
    if (sent < 0) {
        drop(c);
    } else if (sent < got) {
        if (!c->rest) c->rest = malloc(sizeof bytes);
        if (!c->rest) check(-1, "malloc");
        c->begin = 0;
        c->end = (size_t)(got - sent);
        memcpy(c->rest, bytes + sent, c->end);
        watch(c, EPOLL_CTL_MOD, EPOLLOUT);
    }
}

static void send_rest(connection *c) {
    ssize_t sent = send_some(c->fd, c->rest + c->begin, c->end - c->begin);
    if (sent < 0) {
        drop(c);
        return;
    }
    c->begin += (size_t)sent;
    if (c->begin == c->end) watch(c, EPOLL_CTL_MOD, EPOLLIN);
}

static void accept_one(int listener) {
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) return;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    connection *c = calloc(1, sizeof *c);
    if (!c) check(-1, "calloc");
    c->fd = fd;
    watch(c, EPOLL_CTL_ADD, EPOLLIN);
}

static int listen_anywhere(void) {
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    check(bind(listener, (struct sockaddr *)&address, size), "bind");
    check(listen(listener, SOMAXCONN), "listen");
    check(getsockname(listener, (struct sockaddr *)&address, &size), "getsockname");
    printf("{\"port\": %d}\n", ntohs(address.sin_port));
    fflush(stdout);
    return listener;
}

static void allow_files(void) {
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

static void end(int signal) {
    (void)signal;
    _exit(0);
}

int main(void) {
    static struct epoll_event events[EVENTS];
    signal(SIGTERM, end);
    allow_files();
    check(epoll = epoll_create1(EPOLL_CLOEXEC), "epoll_create1");
    connection listener = {.fd = listen_anywhere()};
    watch(&listener, EPOLL_CTL_ADD, EPOLLIN);
    for (;;) {
        int count = epoll_wait(epoll, events, EVENTS, -1);
        for (int i = 0; i < count; i++) {
            connection *c = events[i].data.ptr;
            if (c == &listener) accept_one(listener.fd);
            else if (events[i].events & EPOLLOUT) send_rest(c);
            else receive(c);
        }
    }
}

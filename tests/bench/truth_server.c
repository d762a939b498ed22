/* A server much cheaper than any client, and it knows when it sent what: the truth of `make bench`.
 *
 *   truth_server PORT TTFT_US GAP_US TOKENS TRUTH_FILE
 *
 * HTTP/1.1 with keep-alive, one thread, epoll and one timer. A POST with "stream":true gets its first event after TTFT_US
 * and one each GAP_US, TOKENS in all; the last event, usage and [DONE] go out in one write. Due times are absolute, so
 * lateness does not add up. On SIGTERM it writes a line a request: id arrived_ns sent_ns..., CLOCK_MONOTONIC: when the
 * kernel had the request (SO_TIMESTAMPNS: not when this process got to run), and just before each write.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

typedef struct { char id[96]; int64_t arrived; int64_t *sent; int count; } Row;
typedef struct { int fd, row, left, heap; int64_t due, arrived; char *in; size_t used, size; } Conn;

static Conn **heap, **conns;
static Row *rows;
static int heaped, rowed, row_room, tokens;
static int64_t ttft, gap;
static volatile sig_atomic_t stopping;

static void stop(int s) { (void)s; stopping = 1; }

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* a binary heap by due time; each connection knows its place */
static void put(int i, Conn *c) { heap[i] = c; c->heap = i; }
static void sift(int i) {
    Conn *c = heap[i];
    while (i > 1 && heap[i / 2]->due > c->due) { put(i, heap[i / 2]); i /= 2; }
    for (int k; (k = 2 * i) <= heaped; i = k) {
        if (k < heaped && heap[k + 1]->due < heap[k]->due) k++;
        if (heap[k]->due >= c->due) break;
        put(i, heap[k]);
    }
    put(i, c);
}
static void push(Conn *c) { put(++heaped, c); sift(heaped); }
static void drop(Conn *c) {
    int i = c->heap;
    if (!i) return;
    c->heap = 0;
    Conn *last = heap[heaped--];
    if (last != c) { put(i, last); sift(i); }
}

static const char HEAD[] = "HTTP/1.1 200 OK\r\nServer: truth\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
static const char EVENT[] =
    "data: {\"id\":\"chatcmpl-0123456789abcdef\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"truth\","
    "\"choices\":[{\"index\":0,\"delta\":{\"content\":\" word\"},\"logprobs\":null,\"finish_reason\":null,\"token_ids\":null}]}\n\n";
static char event[1024], last_event[2048];
static int event_size, last_size;

static void answer(Conn *c, const char *body) {
    char out[512];
    int n = snprintf(out, sizeof out, "HTTP/1.1 200 OK\r\nServer: truth\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                     strlen(body), body);
    if (send(c->fd, out, n, MSG_NOSIGNAL) < 0) return;
}

static void gone(Conn *c) {
    drop(c);
    close(c->fd);
    conns[c->fd] = NULL;
    free(c->in);
    free(c);
}

/* one whole request lies at the start of the buffer: take it out */
static void take(Conn *c, size_t head, size_t whole) {
    char saved = c->in[head];
    c->in[head] = 0;
    int post = !strncmp(c->in, "POST", 4);
    char *id = strcasestr(c->in, "\r\nx-request-id: ");
    if (post && memmem(c->in + head + 1, whole - head - 1, "\"stream\":true", 13)) {
        if (rowed == row_room) rows = realloc(rows, (row_room += 65536) * sizeof *rows);
        Row *r = &rows[c->row = rowed++];
        r->arrived = c->arrived;
        r->sent = malloc(tokens * sizeof *r->sent);
        r->count = 0;
        r->id[0] = 0;
        if (id) sscanf(id + 16, "%95[^\r]", r->id);
        c->left = tokens;
        c->due = now_ns() + ttft;
        if (send(c->fd, HEAD, sizeof HEAD - 1, MSG_NOSIGNAL) >= 0) push(c);
    } else if (post) {
        answer(c, "{\"object\":\"chat.completion\",\"choices\":[{\"index\":0,\"message\":{\"content\":\"a\"},\"finish_reason\":\"length\"}],"
                  "\"usage\":{\"prompt_tokens\":20,\"completion_tokens\":1}}");
    } else {
        answer(c, "{\"object\":\"list\",\"data\":[{\"id\":\"truth\"}]}");
    }
    c->in[head] = saved;
    memmove(c->in, c->in + whole, c->used -= whole);
}

static void readable(Conn *c) {
    for (;;) {
        if (c->used + 65536 > c->size) c->in = realloc(c->in, c->size = 2 * c->size + 65536);
        char control[128];
        struct iovec part = {c->in + c->used, c->size - c->used - 1};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
        ssize_t n = recvmsg(c->fd, &message, MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN)) { gone(c); return; }
        if (n < 0) break;
        c->arrived = now_ns();
        struct cmsghdr *stamp = CMSG_FIRSTHDR(&message);
        if (stamp && stamp->cmsg_type == SCM_TIMESTAMPNS) {
            struct timespec at, wall;
            memcpy(&at, CMSG_DATA(stamp), sizeof at);
            clock_gettime(CLOCK_REALTIME, &wall);
            c->arrived = now_ns() - ((wall.tv_sec - at.tv_sec) * 1000000000LL + wall.tv_nsec - at.tv_nsec);
        }
        c->used += n;
        c->in[c->used] = 0;
    }
    char *end;
    while (c->used && (end = memmem(c->in, c->used, "\r\n\r\n", 4))) {
        size_t head = end - c->in + 3, body = 0;
        char *length = strcasestr(c->in, "\r\ncontent-length:");
        if (length && length < end) body = strtoul(length + 17, NULL, 10);
        if (c->used < head + 1 + body) break;
        take(c, head, head + 1 + body);
    }
}

static void due(Conn *c) {
    Row *r = &rows[c->row];
    int is_last = --c->left == 0;
    r->sent[r->count++] = now_ns();
    ssize_t n = send(c->fd, is_last ? last_event : event, is_last ? last_size : event_size, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0) { gone(c); return; }
    if (is_last) { drop(c); return; }
    c->due += gap;
    sift(c->heap);
}

int main(int argc, char **argv) {
    if (argc != 6) { fprintf(stderr, "truth_server PORT TTFT_US GAP_US TOKENS TRUTH_FILE\n"); return 2; }
    ttft = atoll(argv[2]) * 1000; gap = atoll(argv[3]) * 1000; tokens = atoi(argv[4]);
    struct rlimit files = {65536, 65536};
    setrlimit(RLIMIT_NOFILE, &files);
    heap = calloc(65537, sizeof *heap); conns = calloc(65537, sizeof *conns);
    event_size = sprintf(event, "%zx\r\n%s\r\n", sizeof EVENT - 1, EVENT);
    char finish[512];
    sprintf(finish, "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"length\"}]}\n\n"
                    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":20,\"completion_tokens\":%d}}\n\ndata: [DONE]\n\n", tokens);
    last_size = sprintf(last_event, "%s%zx\r\n%s\r\n0\r\n\r\n", event, strlen(finish), finish);
    struct sigaction act = {.sa_handler = stop};
    sigaction(SIGTERM, &act, NULL); sigaction(SIGINT, &act, NULL);
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0), poll = epoll_create1(0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (void *)&at, sizeof at) || listen(listener, 4096)) { perror("truth_server"); return 1; }
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    struct epoll_event e = {.events = EPOLLIN, .data.fd = listener}, ready[512];
    epoll_ctl(poll, EPOLL_CTL_ADD, listener, &e);
    e.data.fd = timer;
    epoll_ctl(poll, EPOLL_CTL_ADD, timer, &e);
    puts("ready");
    fflush(stdout);
    while (!stopping) {
        if (heaped) {
            int64_t t = heap[1]->due > 1 ? heap[1]->due : 1;
            struct itimerspec when = {.it_value = {t / 1000000000, t % 1000000000}};
            timerfd_settime(timer, TFD_TIMER_ABSTIME, &when, NULL);
        }
        int n = epoll_wait(poll, ready, 512, -1);
        for (int i = 0; i < n; i++) {
            int fd = ready[i].data.fd;
            if (fd == timer) {
                uint64_t ticks;
                if (read(timer, &ticks, sizeof ticks) < 0) continue;
            } else if (fd == listener) {
                int client = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
                if (client < 0) continue;
                setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                setsockopt(client, SOL_SOCKET, SO_TIMESTAMPNS, &one, sizeof one);
                Conn *c = conns[client] = calloc(1, sizeof *c);
                c->fd = client;
                e.data.fd = client;
                epoll_ctl(poll, EPOLL_CTL_ADD, client, &e);
            } else if (conns[fd]) {
                readable(conns[fd]);
            }
        }
        while (heaped && heap[1]->due <= now_ns()) due(heap[1]);
    }
    FILE *out = fopen(argv[5], "w");
    if (!out) { perror(argv[5]); return 1; }
    for (int i = 0; i < rowed; i++) {
        fprintf(out, "%s %lld", rows[i].id[0] ? rows[i].id : "-", (long long)rows[i].arrived);
        for (int k = 0; k < rows[i].count; k++) fprintf(out, " %lld", (long long)rows[i].sent[k]);
        fputc('\n', out);
    }
    return fclose(out) != 0;
}

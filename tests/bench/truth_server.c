/* A server much cheaper than any client, and it knows when it sent what: the truth of `make bench`.
 *
 *   truth_server [-s STAGGER_US] [-t CERTIFICATE_AND_KEY] [-b BEGIN] [-e EVENT] [-f FINISH] PORT TTFT_US GAP_US TOKENS TRUTH
 *
 * HTTP/1.1 with keep-alive, one thread and epoll. A POST with "stream":true gets its first event after TTFT_US
 * and one each GAP_US, TOKENS in all; the last event, usage and [DONE] go out in one write. Due times are absolute, so
 * lateness does not add up. -s spreads first tokens evenly over STAGGER_US more, so that requests that come together are
 * not answered together; -t speaks TLS (only where built with -DTLS). The events are those of chat, or in the files BEGIN (with the
 * head of the answer), EVENT and FINISH (with the last one).
 *
 * On SIGTERM it writes TRUTH, a line a request: id (of X-Request-ID, else request-N) arrived_ns sends, and TRUTH.sends, the
 * moments of all sends in the same order, 64-bit ns. CLOCK_MONOTONIC: when the kernel had the request (SO_TIMESTAMPNS: not when this process got to run), and
 * just before each write. On stdout, then: CPU microseconds since the first stream, tokens sent, connections that carried
 * streams, most streams open at once, streams dropped because the client was gone or did not read.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

typedef struct { char id[96]; int64_t arrived; int64_t *sent, *after; int count; } Row;
typedef struct { int fd, row, left, heap; int64_t due, arrived; char *in; size_t used, size; int carried; void *tls, *sealed; } Conn;

static Conn **heap, **conns;
static Row *rows;
static int heaped, rowed, row_room, tokens;
static int streaming, most_streaming, carried, dropped;
static int64_t ttft, gap, stagger, tokens_sent, cpu_before;
static volatile sig_atomic_t stopping;

static void stop(int s) { (void)s; stopping = 1; }

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static int64_t cpu_us(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000000LL + u.ru_utime.tv_usec + u.ru_stime.tv_usec;
}

#ifdef TLS
/* what is needed of OpenSSL 3, so that its headers are not */
extern void *TLS_server_method(void), *SSL_CTX_new(void *), *SSL_new(void *), *BIO_s_mem(void), *BIO_new(void *);
extern void *BIO_new_socket(int, int);
extern int SSL_CTX_use_certificate_chain_file(void *, const char *), SSL_CTX_use_PrivateKey_file(void *, const char *, int);
extern int SSL_read(void *, void *, int), SSL_write(void *, const void *, int), BIO_write(void *, const void *, int);
extern int SSL_get_error(void *, int);
extern void SSL_set_accept_state(void *), SSL_set_bio(void *, void *, void *), SSL_free(void *), ERR_clear_error(void);
enum { PEM = 1, WANT_READ = 2 };
static void *context;

static void tls_begin(Conn *c) { /* read from memory, for the kernel's stamps; write straight to the socket */
    c->tls = SSL_new(context);
    SSL_set_bio(c->tls, c->sealed = BIO_new(BIO_s_mem()), BIO_new_socket(c->fd, 0));
    SSL_set_accept_state(c->tls);
}
/* like recv: what the `n` sealed bytes at `out` hold, written over them; -1 with EAGAIN: nothing yet */
static ssize_t tls_open(Conn *c, char *out, ssize_t n) {
    ssize_t got = 0, room = n;
    if (BIO_write(c->sealed, out, n) != n) return 0;
    ERR_clear_error();
    for (int k; got < room; got += k)
        if ((k = SSL_read(c->tls, out + got, room - got)) <= 0) {
            if (SSL_get_error(c->tls, k) != WANT_READ) return 0;
            break;
        }
    errno = EAGAIN;
    return got ? got : -1;
}
static ssize_t tls_send(Conn *c, const char *data, size_t n) { ERR_clear_error(); return SSL_write(c->tls, data, n) > 0 ? 0 : -1; }
static void tls_end(Conn *c) { if (c->tls) SSL_free(c->tls); }
static int tls_ready(const char *file) {
    context = SSL_CTX_new(TLS_server_method());
    return context && SSL_CTX_use_certificate_chain_file(context, file) == 1 && SSL_CTX_use_PrivateKey_file(context, file, PEM) == 1;
}
#else
static void *context;
static void tls_begin(Conn *c) { (void)c; }
static ssize_t tls_open(Conn *c, char *out, ssize_t n) { (void)c; (void)out; return n; }
static ssize_t tls_send(Conn *c, const char *data, size_t n) { (void)c; (void)data; (void)n; return -1; }
static void tls_end(Conn *c) { (void)c; }
static int tls_ready(const char *file) { (void)file; return 0; }
#endif

static ssize_t put_out(Conn *c, const char *data, size_t n) {
    return c->tls ? tls_send(c, data, n) : send(c->fd, data, n, MSG_NOSIGNAL | MSG_DONTWAIT);
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
static char begin[8192], event[16384], last_event[32768];
static int begin_size, event_size, last_size;
static char given[3][6000]; /* what is sent before the first token, at each, and after the last one, instead of EVENT's */

static const char FILES[] = "bef";

static int read_file(const char *name, char *into) {
    FILE *file = fopen(name, "r");
    size_t n = file ? fread(into, 1, sizeof given[0] - 1, file) : 0;
    into[n] = 0;
    return file && !fclose(file) && n;
}

static void answer(Conn *c, const char *status, const char *body) {
    char out[512];
    int n = snprintf(out, sizeof out, "HTTP/1.1 %s\r\nServer: truth\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                     status, strlen(body), body);
    if (put_out(c, out, n) < 0) return;
}

static void gone(Conn *c) {
    if (c->left) { streaming--; dropped++; }
    drop(c);
    tls_end(c);
    close(c->fd);
    conns[c->fd] = NULL;
    free(c->in);
    free(c);
}

/* its body asks for a stream; some clients write a blank behind each colon */
static int streamed(const char *body, size_t n) {
    return memmem(body, n, "\"stream\":true", 13) || memmem(body, n, "\"stream\": true", 14);
}

/* one whole request lies at the start of the buffer: take it out */
static void take(Conn *c, size_t head, size_t whole) {
    char saved = c->in[head];
    c->in[head] = 0;
    int post = !strncmp(c->in, "POST", 4);
    char *id = strcasestr(c->in, "\r\nx-request-id: ");
    if (post && streamed(c->in + head + 1, whole - head - 1)) {
        if (rowed == row_room) rows = realloc(rows, (row_room += 65536) * sizeof *rows);
        Row *r = &rows[c->row = rowed++];
        r->arrived = c->arrived;
        r->sent = malloc(tokens * sizeof *r->sent);
        r->after = malloc(tokens * sizeof *r->after);
        r->count = 0;
        snprintf(r->id, sizeof r->id, "request-%d", rowed);
        if (id) sscanf(id + 16, "%95[^\r]", r->id);
        if (!cpu_before) cpu_before = cpu_us();
        carried += !c->carried;
        c->carried = 1;
        if (++streaming > most_streaming) most_streaming = streaming;
        c->left = tokens;
        c->due = now_ns() + ttft + (int64_t)(stagger * fmod(rowed * 0.6180339887498949, 1.0));
        put_out(c, HEAD, sizeof HEAD - 1);
        if (begin_size) put_out(c, begin, begin_size);
        push(c);
    } else if (post && !strncmp(c->in + 5, "/tokenize", 9)) {
        answer(c, "404 Not Found", "{\"error\":{\"message\":\"no such route\"}}");
    } else if (post) {
        answer(c, "200 OK", "{\"object\":\"chat.completion\",\"choices\":[{\"index\":0,\"message\":{\"content\":\"a\"},\"finish_reason\":\"length\"}],"
                  "\"usage\":{\"prompt_tokens\":20,\"completion_tokens\":1}}");
    } else {
        answer(c, "200 OK", "{\"object\":\"list\",\"data\":[{\"id\":\"truth\"}]}");
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
        if (c->tls && (n = tls_open(c, c->in + c->used, n)) < 0) continue;
        if (n == 0) { gone(c); return; }
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
    ssize_t n = put_out(c, is_last ? last_event : event, is_last ? last_size : event_size);
    r->after[r->count - 1] = now_ns();
    if (n < 0) { c->left++; gone(c); return; }
    tokens_sent++;
    if (is_last) { streaming--; drop(c); return; }
    c->due += gap;
    sift(c->heap);
}

int main(int argc, char **argv) {
    for (int option; (option = getopt(argc, argv, "s:t:b:e:f:")) != -1;) {
        const char *at = strchr(FILES, option);
        if (option == 's') stagger = atoll(optarg) * 1000;
        else if (at && read_file(optarg, given[at - FILES])) continue;
        else if (option != 't' || !tls_ready(optarg)) { fprintf(stderr, "truth_server: no such option, or no TLS\n"); return 2; }
    }
    argv += optind - 1;
    if (argc - optind != 5) { fprintf(stderr, "truth_server [...] PORT TTFT_US GAP_US TOKENS TRUTH\n"); return 2; }
    ttft = atoll(argv[2]) * 1000; gap = atoll(argv[3]) * 1000; tokens = atoi(argv[4]);
    prctl(PR_SET_TIMERSLACK, 1); /* ns; not the 50 µs by which a wait may be late */
    signal(SIGPIPE, SIG_IGN);
    struct rlimit files = {65536, 65536};
    setrlimit(RLIMIT_NOFILE, &files);
    heap = calloc(65537, sizeof *heap); conns = calloc(65537, sizeof *conns);
    if (*given[0]) begin_size = sprintf(begin, "%zx\r\n%s\r\n", strlen(given[0]), given[0]);
    const char *each = *given[1] ? given[1] : EVENT;
    event_size = sprintf(event, "%zx\r\n%s\r\n", strlen(each), each);
    char finish[6000];
    if (*given[2]) strcpy(finish, given[2]);
    else sprintf(finish, "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"length\"}]}\n\n"
                    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":20,\"completion_tokens\":%d}}\n\ndata: [DONE]\n\n", tokens);
    last_size = sprintf(last_event, "%s%zx\r\n%s\r\n0\r\n\r\n", event, strlen(finish), finish);
    struct sigaction act = {.sa_handler = stop};
    sigaction(SIGTERM, &act, NULL); sigaction(SIGINT, &act, NULL);
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0), poll = epoll_create1(0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (void *)&at, sizeof at) || listen(listener, 4096)) { perror("truth_server"); return 1; }
    struct epoll_event e = {.events = EPOLLIN, .data.fd = listener}, ready[512];
    epoll_ctl(poll, EPOLL_CTL_ADD, listener, &e);
    puts("ready");
    fflush(stdout);
    while (!stopping) {
        int64_t wait = heaped ? heap[1]->due - now_ns() : 0;
        struct timespec until = {wait > 0 ? wait / 1000000000 : 0, wait > 0 ? wait % 1000000000 : 0};
        int n = syscall(SYS_epoll_pwait2, poll, ready, 512, heaped ? &until : NULL, NULL, 0); /* in glibc since 2.35 only */
        for (int i = 0; i < n; i++) {
            int fd = ready[i].data.fd;
            if (fd == listener) {
                int client = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
                if (client < 0) continue;
                setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                setsockopt(client, SOL_SOCKET, SO_TIMESTAMPNS, &one, sizeof one);
                Conn *c = conns[client] = calloc(1, sizeof *c);
                c->fd = client;
                if (context) tls_begin(c);
                e.data.fd = client;
                epoll_ctl(poll, EPOLL_CTL_ADD, client, &e);
            } else if (conns[fd]) {
                readable(conns[fd]);
            }
        }
        while (heaped && heap[1]->due <= now_ns()) due(heap[1]);
    }
    printf("%lld %lld %d %d %d\n", (long long)(cpu_us() - cpu_before), (long long)tokens_sent, carried, most_streaming, dropped);
    char name[4096];
    snprintf(name, sizeof name, "%s.sends", argv[5]);
    FILE *out = fopen(argv[5], "w"), *sends = fopen(name, "w");
    snprintf(name, sizeof name, "%s.after", argv[5]);
    FILE *after = fopen(name, "w");
    if (!out || !sends || !after) { perror(argv[5]); return 1; }
    for (int i = 0; i < rowed; i++) {
        Row *r = &rows[i];
        fprintf(out, "%s %lld %d\n", r->id[0] ? r->id : "-", (long long)r->arrived, r->count);
        fwrite(r->sent, sizeof *r->sent, r->count, sends);
        fwrite(r->after, sizeof *r->after, r->count, after);
    }
    return fclose(out) || fclose(sends) || fclose(after);
}

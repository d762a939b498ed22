/* The least that a client can cost: it reads each chunk with its stamp, decrypts it, and throws it away. For `make bench`.
 *
 *   reading_client PORT STREAMS SECONDS [tls]     `tls` only where built with -DTLS
 *
 * Prints the microseconds of CPU a read, once every stream has been asked for; then of each its id and the milliseconds from its
 * request to the read that brought its first token, by its own clock. The head of an answer is a read of its own.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

typedef struct { int fd, reads; double asked, first; void *tls, *sealed; } Stream;

#ifdef TLS
/* what is needed of OpenSSL 3, so that its headers are not */
extern void *TLS_client_method(void), *SSL_CTX_new(void *), *SSL_new(void *), *BIO_s_mem(void), *BIO_new(void *);
extern void *BIO_new_socket(int, int);
extern int SSL_read(void *, void *, int), SSL_write(void *, const void *, int), SSL_connect(void *), BIO_write(void *, const void *, int);
extern void SSL_set_bio(void *, void *, void *);

static void tls_begin(Stream *s, void *context) { /* read from memory, for the kernel's stamps; write straight to the socket */
    static char data[65536];
    s->tls = SSL_new(context);
    SSL_set_bio(s->tls, s->sealed = BIO_new(BIO_s_mem()), BIO_new_socket(s->fd, 0));
    while (SSL_connect(s->tls) != 1)
        BIO_write(s->sealed, data, recv(s->fd, data, sizeof data, 0));
}

static int tls_read(Stream *s, const char *data, int bytes) {
    static char plain[16384];
    int got = 0, some;
    BIO_write(s->sealed, data, bytes);
    while ((some = SSL_read(s->tls, plain, sizeof plain)) > 0)
        got += some;
    return got;
}
#else
static void *SSL_CTX_new(void *method) { (void)method; return NULL; }
static void *TLS_client_method(void) { return NULL; }
static void tls_begin(Stream *s, void *context) { (void)s; (void)context; }
static int tls_read(Stream *s, const char *data, int bytes) { (void)s; (void)data; return bytes; }
static int SSL_write(void *tls, const void *data, int bytes) { (void)tls; (void)data; return bytes; }
#endif

static double seconds(clockid_t which) {
    struct timespec t;
    clock_gettime(which, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

int main(int argc, char **argv) {
    if (argc < 4) { fprintf(stderr, "reading_client PORT STREAMS SECONDS [tls]\n"); return 2; }
    static const char ask[] = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-Request-ID: c-%d\r\nContent-Length: 15\r\n\r\n{\"stream\":true}";
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int poll = epoll_create1(0), one = 1, count = atoi(argv[2]), asked = 0;
    Stream *streams = calloc(count, sizeof *streams);
    void *context = argc > 4 ? SSL_CTX_new(TLS_client_method()) : NULL;
    for (Stream *s = streams; s < streams + count; s++) {
        s->fd = socket(AF_INET, SOCK_STREAM, 0);
        struct epoll_event e = {.events = EPOLLIN | EPOLLET, .data.ptr = s};
        setsockopt(s->fd, SOL_SOCKET, SO_TIMESTAMPNS, &one, sizeof one);
        if (connect(s->fd, (void *)&at, sizeof at)) { perror("reading_client"); return 1; }
        if (context) tls_begin(s, context);
        if (epoll_ctl(poll, EPOLL_CTL_ADD, s->fd, &e)) { perror("reading_client"); return 1; }
    }
    double now = seconds(CLOCK_MONOTONIC), next = now, end = 0, began = 0;
    long reads = 0;
    struct epoll_event ready[512];
    char data[65536], control[64];
    while (!end || now < end) {
        if (asked < count && now >= next) {
            Stream *s = &streams[asked];
            int size = snprintf(data, sizeof data, ask, asked++);
            s->asked = seconds(CLOCK_MONOTONIC);
            if ((context ? SSL_write(s->tls, data, size) : send(s->fd, data, size, 0)) < 0) { perror("reading_client"); return 1; }
            next += 200e-6;  /* as far apart as they come in a load test */
            if (asked == count) { end = now + atof(argv[3]); began = seconds(CLOCK_PROCESS_CPUTIME_ID); reads = 0; }
        }
        int n = epoll_wait(poll, ready, 512, asked < count ? 0 : 100);
        for (int i = 0; i < n; i++) {
            Stream *s = ready[i].data.ptr;
            struct iovec part = {data, sizeof data};
            struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
            ssize_t bytes = recvmsg(s->fd, &message, MSG_DONTWAIT);
            if (bytes <= 0 || (context && !tls_read(s, data, bytes))) continue;
            reads++;
            if (++s->reads == 2) s->first = seconds(CLOCK_MONOTONIC);
        }
        now = seconds(CLOCK_MONOTONIC);
    }
    printf("%.1f\n", (seconds(CLOCK_PROCESS_CPUTIME_ID) - began) / reads * 1e6);
    for (int i = 0; i < count; i++) printf("c-%d %.3f\n", i, (streams[i].first - streams[i].asked) * 1e3);
    return 0;
}

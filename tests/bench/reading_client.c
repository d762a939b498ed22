/* The least that a client can cost: it reads each chunk with its stamp, and throws it away. For `make bench`.
 *
 *   reading_client PORT STREAMS SECONDS     prints the microseconds of CPU a read, once every stream is open
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

static double seconds(clockid_t which) {
    struct timespec t;
    clock_gettime(which, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

int main(int argc, char **argv) {
    if (argc != 4) { fprintf(stderr, "reading_client PORT STREAMS SECONDS\n"); return 2; }
    static const char ask[] = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 15\r\n\r\n{\"stream\":true}";
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int poll = epoll_create1(0), one = 1;
    for (int i = 0; i < atoi(argv[2]); i++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        struct epoll_event e = {.events = EPOLLIN | EPOLLET, .data.fd = fd};
        setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &one, sizeof one);
        if (connect(fd, (void *)&at, sizeof at) || epoll_ctl(poll, EPOLL_CTL_ADD, fd, &e) ||
            send(fd, ask, sizeof ask - 1, 0) < 0) { perror("reading_client"); return 1; }
        usleep(200);  /* as far apart as they come in a load test */
    }
    double end = seconds(CLOCK_MONOTONIC) + atof(argv[3]), began = seconds(CLOCK_PROCESS_CPUTIME_ID);
    long reads = 0;
    struct epoll_event ready[512];
    char data[65536], control[64];
    while (seconds(CLOCK_MONOTONIC) < end) {
        int n = epoll_wait(poll, ready, 512, 100);
        for (int i = 0; i < n; i++) {
            struct iovec part = {data, sizeof data};
            struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
            reads += recvmsg(ready[i].data.fd, &message, MSG_DONTWAIT) > 0;
        }
    }
    printf("%.1f\n", (seconds(CLOCK_PROCESS_CPUTIME_ID) - began) / reads * 1e6);
    return 0;
}

/* Native reader: its thread waits on all streaming sockets and keeps what comes, with the kernel's stamps and without
 * Python's lock. It follows the same rules as python_reader.py. open_streams.py is the other side.
 *
 * Two threads meet here. This module's own thread reads. Any thread that holds Python's lock adds, takes and removes streams.
 * Each stream has a lock, held for one read or one take. A stream that Python must decode goes to one of three queues: at once
 * (the first bytes, the end), soon (a possible end), or later (probably no end). Lock order: stream, queue.
 *
 * TLS data stays encrypted here: only the headers of its records are read, see follow_records. The table of streams is used
 * under Python's lock alone. The thread knows a stream by its epoll event, so a removed stream lives on until the thread has
 * begun its next round.
 */
#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define INTERFACE 2      /* of this module, as in native_reader.py; it changes with a signature */
#define READ_BYTES 65536
#define MAX_READS 2      /* of one connection between two polls, as in python_reader.py */
#define MAX_READY 1024
#define LOOK_MS 5        /* the longest wait for bytes of open streams; as in python_reader.py */
#define NAP_READS 1024
#define NAP_STREAMS 32
#define NAP_NS 750000
#define SHORT_NAP_NS 250000
#define TIGHT_NS (3 * NAP_NS)
#define TIGHT_SHARE 0.05
#define CLOCKS_NS 20000  /* see kernel_clock_offset.py */
#define SECOND_NS 1000000000LL
#define CLOSED (-1)
#define MAX_DIGITS 6     /* of the size of an HTTP chunk; the parser reads longer ones */

#define HEADER_BYTES 5   /* of a TLS record: kind, version, and the number of bytes that follow (RFC 8446, 5.1) */
#define SHORT_RECORD 64  /* bytes of a record without a whole chunk: the end of a message, or a close_notify */

#define SOON_NS 50000000 /* longer waits go to LATER, so that they never stand before a shorter one */

enum { AT_ONCE, SOON, LATER, QUEUES };

typedef struct { int64_t stamp_ns, since_ns; size_t bytes; } Read;

typedef struct Stream {
    pthread_mutex_t lock;
    int fd;
    bool removed;            /* by Python: the thread must not use its socket any more */
    int end;                 /* 0: none yet; CLOSED; else the errno of the read that failed */
    bool tls;
    unsigned char header[HEADER_BYTES];
    size_t header_bytes, record_bytes, record_left;  /* of the TLS record that is arriving */
    size_t longest;          /* record since the stream is calm */
    bool unusual;            /* the last read, see follow_records */
    bool awaited;
    bool calm, chunked;      /* see calm() */
    size_t most;
    int64_t patience_ns;
    int64_t sent_ns, read_ns, stamp_ns, left_since_ns, lag_ns;
    long long unstamped, bad;
    char *data;              /* bytes that Python has not taken yet */
    size_t bytes, room;
    Read *reads;
    size_t count, read_room;
    bool queued[QUEUES];     /* under the queues' lock */
    int64_t due_ns[QUEUES];
    struct Stream *next[QUEUES];
} Stream;

typedef struct { Stream *first, *last; } Queue;

typedef struct {
    PyObject_HEAD
    pid_t pid;
    int epoll, wake;
    int event_fd;            /* readable while next() has a stream to give */
    bool running;
    pthread_t thread;
    Stream **streams;        /* by descriptor */
    int table;
    pthread_mutex_t lock;    /* of all fields from here to `failure` */
    Queue queues[QUEUES];
    Stream *removed;
    bool notified;
    int failure;             /* errno of what ended the thread */
    atomic_bool stop, unstamped;
    atomic_int open, awaited;
    atomic_llong reads, behind_ns;
    int64_t nap_ns;          /* from here on only the thread uses the fields */
    long long nap_due, tight;
    struct epoll_event ready[MAX_READY];
    char buffer[READ_BYTES];
} Reader;

static int64_t now_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * SECOND_NS + t.tv_nsec;
}

static int64_t wall_minus_monotonic_ns(void) {
    int64_t best = INT64_MAX, offset = 0;
    for (int i = 0; i < 8 && best >= CLOCKS_NS; i++) {
        int64_t before = now_ns(CLOCK_MONOTONIC), wall = now_ns(CLOCK_REALTIME), after = now_ns(CLOCK_MONOTONIC);
        if (after - before < best) {
            best = after - before;
            offset = wall - (before + after) / 2;
        }
    }
    return offset;
}

/* -- the queues ---------------------------------------------------------------------------------------------------------- */

/* Called under the queues' lock. */
static void notify(Reader *reader) {
    if (!reader->notified) {
        reader->notified = true;
        eventfd_write(reader->event_fd, 1);
    }
}

static void enqueue(Reader *reader, Stream *stream, int which, int64_t due_ns) {
    pthread_mutex_lock(&reader->lock);
    if (!stream->queued[which]) {
        Queue *queue = &reader->queues[which];
        stream->queued[which] = true;
        stream->due_ns[which] = due_ns;
        stream->next[which] = NULL;
        if (queue->first == NULL)
            queue->first = stream;
        else
            queue->last->next[which] = stream;
        queue->last = stream;
        if (which == AT_ONCE)
            notify(reader);
    }
    pthread_mutex_unlock(&reader->lock);
}

/* The next stream that is due, NULL if there is none. Called under the queues' lock. */
static Stream *dequeue(Reader *reader, int which, int64_t at_ns) {
    Queue *queue = &reader->queues[which];
    Stream *stream = queue->first;
    if (stream == NULL || stream->due_ns[which] > at_ns)
        return NULL;
    queue->first = stream->next[which];
    stream->queued[which] = false;
    return stream;
}

static void retire(Reader *reader, Stream *stream) {
    for (int which = 0; which < QUEUES; which++)
        if (stream->queued[which])
            return;
    stream->next[AT_ONCE] = reader->removed;
    reader->removed = stream;
}

static void free_stream(Stream *stream) {
    pthread_mutex_destroy(&stream->lock);
    free(stream->data);
    free(stream->reads);
    free(stream);
}

/* Frees the streams that no event and no queue names any more. */
static void free_removed(Reader *reader) {
    pthread_mutex_lock(&reader->lock);
    Stream *stream = reader->removed;
    reader->removed = NULL;
    pthread_mutex_unlock(&reader->lock);
    while (stream != NULL) {
        Stream *next = stream->next[AT_ONCE];
        free_stream(stream);
        stream = next;
    }
}

/* Notifies Python if streams of SOON and LATER are due. Returns the ms until the next one is due; -1: there is none. */
static int ms_until_due(Reader *reader) {
    int64_t now = now_ns(CLOCK_MONOTONIC), next = INT64_MAX;
    pthread_mutex_lock(&reader->lock);
    for (int which = SOON; which < QUEUES; which++) {
        Stream *stream = reader->queues[which].first;
        for (; stream != NULL && stream->due_ns[which] <= now; stream = stream->next[which])
            notify(reader);
        if (stream != NULL && stream->due_ns[which] < next)
            next = stream->due_ns[which];
    }
    pthread_mutex_unlock(&reader->lock);
    return next == INT64_MAX ? -1 : (int)((next - now) / 1000000 + 1);
}

/* Returns the ms to wait for bytes. While streams are open it is short, so that what comes together after a silence, as
 * when the server stood still, is known to have come after it; -1: until something comes. */
static int ms_to_wait(Reader *reader) {
    int ms = ms_until_due(reader);
    if (atomic_load(&reader->open) && (ms < 0 || ms > LOOK_MS))
        return LOOK_MS;
    return ms;
}

/* -- the thread ---------------------------------------------------------------------------------------------------------- */

static bool ensure_room(void **memory, size_t *room, size_t needed, size_t each) {
    if (needed <= *room)
        return true;
    size_t more = *room ? *room : 1024 / each;
    while (more < needed)
        more *= 2;
    void *bigger = realloc(*memory, more * each);
    if (bigger == NULL)
        return false;
    *memory = bigger;
    *room = more;
    return true;
}

static bool keep_bytes(Stream *stream, int64_t stamp_ns, int64_t since_ns, const char *data, size_t bytes) {
    if (!ensure_room((void **)&stream->data, &stream->room, stream->bytes + bytes, 1) ||
        !ensure_room((void **)&stream->reads, &stream->read_room, stream->count + 1, sizeof(Read)))
        return false;
    memcpy(stream->data + stream->bytes, data, bytes);
    stream->bytes += bytes;
    stream->reads[stream->count++] = (Read){stamp_ns, since_ns, bytes};
    return true;
}

/* Whether a chunked body ends in this read: probably (decode at once), perhaps, or not. Only the parser knows for certain. */
enum { NO_END, MAY_END, ENDS };

static int find_chunked_end(const char *data, size_t bytes) {
    if (bytes < 5 || (memcmp(data + bytes - 5, "0\r\n\r\n", 5) == 0 && (bytes == 5 || data[bytes - 6] == '\n')))
        return ENDS;
    return memmem(data, bytes, "\r\n\r\n", 4) != NULL ? MAY_END : NO_END;
}

/* Follows the TLS records. Returns whether a record ended here that is short, or longer than all before it. The end of a
 * message is such a record, alone or behind a chunk, and hardly any other record is. */
static bool follow_records(Stream *stream, const char *data, size_t bytes) {
    bool unusual = false;
    while (bytes) {
        if (stream->header_bytes < HEADER_BYTES) {
            stream->header[stream->header_bytes++] = (unsigned char)*data;
            data++;
            bytes--;
            if (stream->header_bytes < HEADER_BYTES)
                continue;
            stream->record_bytes = stream->record_left = (size_t)stream->header[3] << 8 | stream->header[4];
        }
        size_t some = stream->record_left < bytes ? stream->record_left : bytes;
        stream->record_left -= some;
        data += some;
        bytes -= some;
        if (stream->record_left)
            continue;
        stream->header_bytes = 0;
        unusual |= stream->record_bytes <= SHORT_RECORD || stream->record_bytes > stream->longest;
        if (stream->calm && stream->record_bytes > stream->longest)
            stream->longest = stream->record_bytes;
    }
    return unusual;
}

static int classify_end(Stream *stream, const char *data, size_t bytes) {
    if (stream->tls)
        return stream->unusual ? ENDS : NO_END;
    return stream->calm && stream->chunked ? find_chunked_end(data, bytes) : NO_END;
}

static void queue_for_python(Reader *reader, Stream *stream, const char *data, size_t bytes, int64_t now) {
    int end = classify_end(stream, data, bytes);
    if (!stream->calm || stream->bytes > stream->most || end == ENDS)
        enqueue(reader, stream, AT_ONCE, 0);
    else if (end == MAY_END || (stream->patience_ns && !stream->chunked))
        enqueue(reader, stream, stream->patience_ns < SOON_NS ? SOON : LATER, now + stream->patience_ns);
}

static void end_stream(Reader *reader, Stream *stream, int end) {
    stream->end = end;
    epoll_ctl(reader->epoll, EPOLL_CTL_DEL, stream->fd, NULL);
    enqueue(reader, stream, AT_ONCE, 0);
}

/* Stores one read. Returns whether more may follow. */
static bool store_read(Reader *reader, Stream *stream, int64_t stamp, int64_t since, size_t bytes, int64_t now) {
    const char *data = reader->buffer;
    if (since > stamp)  /* the kernel stamps bytes shortly before it reports them: the poll in between did not see them */
        since = stamp;
    if (!keep_bytes(stream, stamp, since, data, bytes)) {
        end_stream(reader, stream, ENOMEM);
        return false;
    }
    if (stream->tls)
        stream->unusual = follow_records(stream, data, bytes);
    queue_for_python(reader, stream, data, bytes, now);
    return true;
}

static void rearm(Reader *reader, Stream *stream) {
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP | EPOLLET, .data.ptr = stream};
    epoll_ctl(reader->epoll, EPOLL_CTL_MOD, stream->fd, &event);
}

/* Reads bytes, with the kernel's stamp of the newest one, 0 where there is none. Returns -1 with errno on an error. */
static ssize_t receive(int fd, char *data, int64_t *kernel_ns) {
    union { char bytes[64]; struct cmsghdr align; } control;
    struct iovec part = {data, READ_BYTES};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t bytes = recvmsg(fd, &message, MSG_DONTWAIT);
    *kernel_ns = 0;
    struct cmsghdr *header = bytes < 0 ? NULL : CMSG_FIRSTHDR(&message);
    if (header != NULL && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_TIMESTAMPNS) {
        struct timespec t;
        memcpy(&t, CMSG_DATA(header), sizeof t);
        *kernel_ns = t.tv_sec * SECOND_NS + t.tv_nsec;
    }
    return bytes;
}

/* The monotonic stamp of the last read. The thread's own clock replaces a kernel stamp that cannot belong to this answer. */
static int64_t choose_stamp(Reader *reader, Stream *stream, int64_t kernel_ns, int64_t offset_ns, int64_t now, bool empty) {
    int64_t stamp = kernel_ns - offset_ns;
    if (stamp < stream->sent_ns || stamp > now) {
        stamp = now;
        if (kernel_ns)  /* the wall clock was set between the arrival and the read, or it is no stamp of this answer */
            stream->bad++;
        else if (!empty) {  /* the end of a connection has no stamp */
            stream->unstamped++;
            atomic_store_explicit(&reader->unstamped, true, memory_order_relaxed);  /* no time to sleep */
        }
    }
    int64_t behind = now - stamp;
    atomic_store_explicit(&reader->behind_ns, behind, memory_order_relaxed);
    if (behind > stream->lag_ns)
        stream->lag_ns = behind;
    reader->tight += stamp - stream->stamp_ns < TIGHT_NS;
    stream->stamp_ns = stamp;
    atomic_fetch_add_explicit(&reader->reads, 1, memory_order_relaxed);
    return stamp;
}

/* Reads once, as PythonReader._read does, and again where the peer closes or where one read may not take all. */
static void read_stream(Reader *reader, Stream *stream, int64_t since, int64_t begun, int64_t offset, bool closing) {
    if (stream->left_since_ns) {
        since = stream->left_since_ns;
        stream->left_since_ns = 0;
    } else if (stream->read_ns > since)
        since = stream->read_ns;
    stream->read_ns = begun;
    if (stream->bytes >= READ_BYTES) {  /* it comes faster than Python decodes it, so the server must wait */
        stream->left_since_ns = since;
        return;
    }
    for (int reads = 1;; reads++) {
        int64_t kernel_ns;
        ssize_t bytes = receive(stream->fd, reader->buffer, &kernel_ns);
        if (bytes < 0) {
            if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)
                end_stream(reader, stream, errno);
            return;
        }
        int64_t now = now_ns(CLOCK_MONOTONIC);
        int64_t stamp = choose_stamp(reader, stream, kernel_ns, offset, now, bytes == 0);
        if (bytes == 0) {
            end_stream(reader, stream, CLOSED);
            return;
        }
        if (!store_read(reader, stream, stamp, since, bytes, now))
            return;
        if (bytes < READ_BYTES) {  /* the read took all that was there; otherwise the rest may be as old */
            if (!closing)
                return;
            since = begun;
        }
        if (reads == MAX_READS) {
            stream->left_since_ns = since;
            if (stream->bytes < READ_BYTES)  /* otherwise take() rearms it */
                rearm(reader, stream);
            return;
        }
    }
}

static void set_nap(Reader *reader) {
    long long reads = atomic_load_explicit(&reader->reads, memory_order_relaxed);
    if (reads < reader->nap_due)
        return;
    reader->nap_ns = reader->tight < TIGHT_SHARE * NAP_READS ? NAP_NS : SHORT_NAP_NS;
    reader->tight = 0;
    reader->nap_due = reads + NAP_READS;
}

static void nap(Reader *reader) {
    atomic_store_explicit(&reader->behind_ns, 0, memory_order_relaxed);
    if (atomic_load(&reader->unstamped) || atomic_load(&reader->open) < NAP_STREAMS)
        return;
    struct timespec t = {0, atomic_load(&reader->awaited) ? SHORT_NAP_NS : reader->nap_ns};
    nanosleep(&t, NULL);
}

static void *run(void *argument) {
    Reader *reader = argument;
    int64_t since = 0;
    int failure = 0;
    while (!failure) {
        free_removed(reader);
        int64_t asked = now_ns(CLOCK_MONOTONIC);
        int ready = epoll_wait(reader->epoll, reader->ready, MAX_READY, 0);
        if (ready == 0) {  /* nothing had come before it was asked for */
            since = asked;
            ready = epoll_wait(reader->epoll, reader->ready, MAX_READY, ms_to_wait(reader));
        }
        if (atomic_load(&reader->stop))
            return NULL;
        if (ready < 0) {
            failure = errno == EINTR ? 0 : errno;
            continue;
        }
        int64_t begun = now_ns(CLOCK_MONOTONIC), offset = wall_minus_monotonic_ns();
        for (int i = 0; i < ready; i++) {
            Stream *stream = reader->ready[i].data.ptr;
            if (stream == NULL) {  /* the first stream is open */
                eventfd_t count;
                eventfd_read(reader->wake, &count);
                continue;
            }
            pthread_mutex_lock(&stream->lock);
            if (!stream->removed && !stream->end)
                read_stream(reader, stream, since, begun, offset, reader->ready[i].events != EPOLLIN);
            pthread_mutex_unlock(&stream->lock);
        }
        if (ready < MAX_READY)  /* this poll reported everything that came before it */
            since = asked;
        set_nap(reader);
        nap(reader);
    }
    pthread_mutex_lock(&reader->lock);
    reader->failure = failure;
    notify(reader);
    pthread_mutex_unlock(&reader->lock);
    return NULL;
}

/* -- what Python calls, with its lock -------------------------------------------------------------------------------------- */

static Stream *stream_of(Reader *reader, int fd) {
    Stream *stream = fd >= 0 && fd < reader->table ? reader->streams[fd] : NULL;
    if (stream == NULL)
        PyErr_Format(PyExc_KeyError, "no stream has the descriptor %d", fd);
    return stream;
}

static PyObject *add(Reader *reader, PyObject *args) {
    int fd, awaited, tls;
    long long sent_ns;
    if (!PyArg_ParseTuple(args, "iLpp", &fd, &sent_ns, &awaited, &tls))
        return NULL;
    if (fd < 0 || (fd < reader->table && reader->streams[fd] != NULL))
        return PyErr_Format(PyExc_ValueError, "the descriptor %d cannot be added", fd);
    if (fd >= reader->table) {
        int table = 2 * fd + 64;
        Stream **bigger = realloc(reader->streams, table * sizeof *bigger);
        if (bigger == NULL)
            return PyErr_NoMemory();
        memset(bigger + reader->table, 0, (table - reader->table) * sizeof *bigger);
        reader->streams = bigger;
        reader->table = table;
    }
    Stream *stream = calloc(1, sizeof *stream);
    if (stream == NULL)
        return PyErr_NoMemory();
    pthread_mutex_init(&stream->lock, NULL);
    stream->fd = fd;
    stream->sent_ns = sent_ns;
    stream->awaited = awaited;
    stream->tls = tls;
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP | EPOLLET, .data.ptr = stream};
    if (epoll_ctl(reader->epoll, EPOLL_CTL_ADD, fd, &event)) {
        free_stream(stream);
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    reader->streams[fd] = stream;
    if (atomic_fetch_add(&reader->open, 1) == 0)
        eventfd_write(reader->wake, 1);
    atomic_fetch_add(&reader->awaited, awaited);
    Py_RETURN_NONE;
}

static PyObject *sent(Reader *reader, PyObject *args) {
    int fd;
    long long sent_ns;
    if (!PyArg_ParseTuple(args, "iL", &fd, &sent_ns))
        return NULL;
    Stream *stream = fd >= 0 && fd < reader->table ? reader->streams[fd] : NULL;
    if (stream != NULL) {  /* otherwise its answer was over before the request was all written */
        pthread_mutex_lock(&stream->lock);
        stream->sent_ns = sent_ns;
        pthread_mutex_unlock(&stream->lock);
    }
    Py_RETURN_NONE;
}

static PyObject *calm(Reader *reader, PyObject *args) {
    int fd, chunked;
    Py_ssize_t most;
    long long patience_ns;
    if (!PyArg_ParseTuple(args, "inpL", &fd, &most, &chunked, &patience_ns))
        return NULL;
    Stream *stream = stream_of(reader, fd);
    if (stream == NULL)
        return NULL;
    pthread_mutex_lock(&stream->lock);
    stream->calm = true;
    stream->most = most;
    stream->chunked = chunked;
    stream->patience_ns = patience_ns;
    if (stream->awaited) {
        stream->awaited = false;
        atomic_fetch_sub(&reader->awaited, 1);
    }
    pthread_mutex_unlock(&stream->lock);
    Py_RETURN_NONE;
}

/* Builds the result of take(), as _reader.pyi describes it. Stamps and since are the bytes of arrays of int64. */
static PyObject *build_reads(const char *data, const Read *reads, size_t count, const Stream *was) {
    PyObject *stamps = PyBytes_FromStringAndSize(NULL, count * 8), *since = PyBytes_FromStringAndSize(NULL, count * 8);
    PyObject *pieces = PyList_New(count), *result = NULL;
    if (!stamps || !since || !pieces)
        goto done;
    char *stamp_at = PyBytes_AsString(stamps), *since_at = PyBytes_AsString(since);
    for (size_t i = 0; i < count; i++) {
        memcpy(stamp_at + 8 * i, &reads[i].stamp_ns, 8);
        memcpy(since_at + 8 * i, &reads[i].since_ns, 8);
        PyObject *piece = PyBytes_FromStringAndSize(data, reads[i].bytes);
        if (piece == NULL || PyList_SetItem(pieces, i, piece))
            goto done;
        data += reads[i].bytes;
    }
    result = Py_BuildValue("(OOOiLLLO)", stamps, since, pieces, was->end, was->unstamped, was->bad, (long long)was->lag_ns,
                           was->unusual ? Py_True : Py_False);
done:
    Py_XDECREF(stamps);
    Py_XDECREF(since);
    Py_XDECREF(pieces);
    return result;
}

static PyObject *take(Reader *reader, PyObject *args) {
    int fd;
    if (!PyArg_ParseTuple(args, "i", &fd))
        return NULL;
    Stream *stream = stream_of(reader, fd);
    if (stream == NULL)
        return NULL;
    pthread_mutex_lock(&stream->lock);
    Stream was = *stream;
    stream->data = NULL;
    stream->reads = NULL;
    stream->bytes = stream->room = stream->count = stream->read_room = 0;
    if (stream->left_since_ns && !stream->end)
        rearm(reader, stream);
    pthread_mutex_unlock(&stream->lock);
    PyObject *result = build_reads(was.data, was.reads, was.count, &was);
    free(was.data);
    free(was.reads);
    return result;
}

static PyObject *newest(Reader *reader, PyObject *args) {
    int fd;
    if (!PyArg_ParseTuple(args, "i", &fd))
        return NULL;
    Stream *stream = fd >= 0 && fd < reader->table ? reader->streams[fd] : NULL;
    if (stream == NULL)  /* it ended a moment ago */
        return PyLong_FromLong(0);
    pthread_mutex_lock(&stream->lock);
    long long stamp_ns = stream->stamp_ns;
    pthread_mutex_unlock(&stream->lock);
    return PyLong_FromLongLong(stamp_ns);
}

/* Returns whether bytes are left that Python did not take. */
static bool detach(Reader *reader, Stream *stream) {
    reader->streams[stream->fd] = NULL;
    pthread_mutex_lock(&stream->lock);
    bool left = stream->count > 0;
    if (!stream->end)
        epoll_ctl(reader->epoll, EPOLL_CTL_DEL, stream->fd, NULL);
    atomic_fetch_sub(&reader->open, 1);
    atomic_fetch_sub(&reader->awaited, stream->awaited);
    pthread_mutex_lock(&reader->lock);  /* under both locks, so that neither a read nor a wait sees half of it */
    stream->removed = true;
    pthread_mutex_unlock(&stream->lock);
    retire(reader, stream);
    pthread_mutex_unlock(&reader->lock);
    return left;
}

static PyObject *remove_stream(Reader *reader, PyObject *args) {
    int fd;
    if (!PyArg_ParseTuple(args, "i", &fd))
        return NULL;
    bool left = false;
    if (fd >= 0 && fd < reader->table && reader->streams[fd] != NULL)
        left = detach(reader, reader->streams[fd]);
    return PyBool_FromLong(left);
}

static PyObject *sweep(Reader *reader, PyObject *args) {
    long long quiet_ns, waited_ns;
    if (!PyArg_ParseTuple(args, "LL", &quiet_ns, &waited_ns))
        return NULL;
    int64_t now = now_ns(CLOCK_MONOTONIC);
    for (int fd = 0; fd < reader->table; fd++) {
        Stream *stream = reader->streams[fd];
        if (stream == NULL)
            continue;
        pthread_mutex_lock(&stream->lock);
        size_t count = stream->count;
        if (count && (now - stream->reads[count - 1].stamp_ns > quiet_ns || now - stream->reads[0].stamp_ns > waited_ns))
            enqueue(reader, stream, AT_ONCE, 0);
        pthread_mutex_unlock(&stream->lock);
    }
    Py_RETURN_NONE;
}

/* The next stream to decode, NULL if there is none. After the last one event_fd is not readable any more. */
static Stream *next_due(Reader *reader) {
    int64_t now = now_ns(CLOCK_MONOTONIC);
    for (int which = 0; which < QUEUES; which++)
        for (Stream *stream; (stream = dequeue(reader, which, now)) != NULL; retire(reader, stream))
            if (!stream->removed)
                return stream;
    eventfd_t count;
    eventfd_read(reader->event_fd, &count);
    reader->notified = false;
    return NULL;
}

static PyObject *next_stream(Reader *reader, PyObject *Py_UNUSED(none)) {
    pthread_mutex_lock(&reader->lock);
    Stream *stream = next_due(reader);
    int fd = stream == NULL ? -1 : stream->fd, failure = reader->failure;
    pthread_mutex_unlock(&reader->lock);
    if (failure) {
        errno = failure;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    return PyLong_FromLong(fd);
}

static void end_thread(Reader *reader) {
    if (!reader->running || reader->pid != getpid())  /* a forked child does not have the thread */
        return;
    reader->running = false;
    atomic_store(&reader->stop, true);
    eventfd_write(reader->wake, 1);
    Py_BEGIN_ALLOW_THREADS
    pthread_join(reader->thread, NULL);
    Py_END_ALLOW_THREADS
}

static PyObject *stop(Reader *reader, PyObject *Py_UNUSED(none)) {
    end_thread(reader);
    Py_RETURN_NONE;
}

static PyObject *get_event_fd(Reader *reader, void *Py_UNUSED(closure)) {
    return PyLong_FromLong(reader->event_fd);
}

static PyObject *get_reads(Reader *reader, void *Py_UNUSED(closure)) {
    return PyLong_FromLongLong(atomic_load(&reader->reads));
}

static PyObject *get_behind_ns(Reader *reader, void *Py_UNUSED(closure)) {
    return PyLong_FromLongLong(atomic_load(&reader->behind_ns));
}

/* -- made and freed -------------------------------------------------------------------------------------------------------- */

static bool start_thread(Reader *reader) {
    pthread_mutex_init(&reader->lock, NULL);
    struct epoll_event event = {.events = EPOLLIN};
    reader->epoll = epoll_create1(EPOLL_CLOEXEC);
    reader->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    reader->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (reader->epoll < 0 || reader->wake < 0 || reader->event_fd < 0 || epoll_ctl(reader->epoll, EPOLL_CTL_ADD, reader->wake, &event))
        return false;
    sigset_t all, before;  /* signals go to the thread in which Python expects them */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    errno = pthread_create(&reader->thread, NULL, run, reader);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return reader->running = errno == 0;
}

static PyObject *new_reader(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(keywords)) {
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Reader *reader = (Reader *)allocate(type, 0);
    if (reader == NULL)
        return NULL;
    reader->pid = getpid();
    reader->epoll = reader->wake = reader->event_fd = -1;
    reader->nap_ns = SHORT_NAP_NS;
    reader->nap_due = NAP_READS;
    if (!start_thread(reader)) {
        PyErr_SetFromErrno(PyExc_OSError);
        Py_DECREF(reader);
        return NULL;
    }
    return (PyObject *)reader;
}

static void free_reader(Reader *reader) {
    PyTypeObject *type = Py_TYPE((PyObject *)reader);
    end_thread(reader);
    if (reader->pid == getpid()) {
        for (int fd = 0; fd < reader->table; fd++)
            if (reader->streams[fd] != NULL)
                detach(reader, reader->streams[fd]);
        for (int which = 0; which < QUEUES; which++)
            for (Stream *stream; (stream = dequeue(reader, which, INT64_MAX)) != NULL;)
                retire(reader, stream);
        free_removed(reader);
    }
    free(reader->streams);
    int fds[] = {reader->epoll, reader->wake, reader->event_fd};
    for (int i = 0; i < 3; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(reader);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"add", (PyCFunction)add, METH_VARARGS, NULL},
    {"sent", (PyCFunction)sent, METH_VARARGS, NULL},
    {"calm", (PyCFunction)calm, METH_VARARGS, NULL},
    {"take", (PyCFunction)take, METH_VARARGS, NULL},
    {"newest", (PyCFunction)newest, METH_VARARGS, NULL},
    {"remove", (PyCFunction)remove_stream, METH_VARARGS, NULL},
    {"sweep", (PyCFunction)sweep, METH_VARARGS, NULL},
    {"next", (PyCFunction)next_stream, METH_NOARGS, NULL},
    {"stop", (PyCFunction)stop, METH_NOARGS, NULL},
    {NULL},
};

static PyGetSetDef attributes[] = {
    {"reads", (getter)get_reads, NULL, NULL, NULL},
    {"behind_ns", (getter)get_behind_ns, NULL, NULL, NULL},
    {"event_fd", (getter)get_event_fd, NULL, NULL, NULL},
    {NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, new_reader}, {Py_tp_dealloc, free_reader}, {Py_tp_methods, methods}, {Py_tp_getset, attributes}, {0, NULL},
};

static PyType_Spec spec = {"locust_llm.client.reader._reader.Reader", sizeof(Reader), 0, Py_TPFLAGS_DEFAULT, slots};

/* -- events ---------------------------------------------------------------------------------------------------------------- */

static int hex(char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* The data of an event that fills an HTTP chunk: `data: {...}` and a blank line. NULL: the chunk holds something else.
 * `*at` moves behind the chunk. */
static const char *find_event(const char **at, const char *end, size_t *bytes) {
    const char *c = *at;
    size_t size = 0;
    int digits = 0;
    for (; c < end && digits < MAX_DIGITS && hex(*c) >= 0; c++, digits++)
        size = size * 16 + hex(*c);
    if (size < sizeof "data: {\n\n" - 1 || (size_t)(end - c) < size + 4)
        return NULL;
    const char *event = c + 2, *blank = event + size - 2;
    if (memcmp(c, "\r\n", 2) || memcmp(event, "data: {", 7) || memcmp(blank, "\n\n\r\n", 4))
        return NULL;
    if (memchr(event, '\n', size) != blank || memchr(event, '\r', size) != NULL)
        return NULL;
    *at = event + size + 2;
    *bytes = size - 8;
    return event + 6;
}

/* The bytes before and behind the text of a chunk. An event with the same bytes around another text is another chunk. */
typedef struct { const char *before, *behind; Py_ssize_t before_bytes, behind_bytes; } Form;

/* Whether the event has this form around a text of plain ASCII, which needs no parser. */
static bool has_form(const Form *form, const char *event, size_t bytes) {
    size_t before = form->before_bytes, behind = form->behind_bytes;
    if (!before || bytes <= before + behind || memcmp(event, form->before, before) ||
        memcmp(event + bytes - behind, form->behind, behind))
        return false;
    for (const char *c = event + before; c < event + bytes - behind; c++)
        if (*c < ' ' || *c > '~' || *c == '"' || *c == '\\')  /* a byte beyond ASCII is negative, or above '~' */
            return false;
    return true;
}

static int append(PyObject *list, PyObject *item) {
    int failed = item == NULL || PyList_Append(list, item);
    Py_XDECREF(item);
    return failed;
}

typedef struct {
    PyObject *list, *kind;
    PyObject *same;          /* the reads of the last chunks in a row with this form; NULL: there are none */
    const char *last;        /* the last of these chunks */
    size_t last_bytes;
    Form form;
} Events;

static int end_same(Events *events) {
    if (events->same == NULL)
        return 0;
    PyObject *item = Py_BuildValue("(Ny#)", events->same, events->last, (Py_ssize_t)events->last_bytes);
    events->same = NULL;
    return append(events->list, item);
}

static int add_event(Events *events, const char *event, size_t bytes, long read) {
    if (!has_form(&events->form, event, bytes))
        return end_same(events) || append(events->list, Py_BuildValue("(lOy#)", read, events->kind, event, (Py_ssize_t)bytes));
    if (events->same == NULL && (events->same = PyList_New(0)) == NULL)
        return -1;
    events->last = event;
    events->last_bytes = bytes;
    return append(events->same, PyLong_FromLong(read));
}

/* Adds the events of a read that has only whole chunks of one event each, and returns 1. Returns 0 for other reads, -1 with an exception. */
static int add_events(Events *events, const char *data, size_t bytes, long read) {
    const char *end = data + bytes, *at = data;
    size_t size;
    while (at < end)
        if (find_event(&at, end, &size) == NULL)
            return 0;
    for (at = data; at < end;) {
        const char *event = find_event(&at, end, &size);
        if (add_event(events, event, size, read))
            return -1;
    }
    return bytes > 0;
}

static PyObject *plain_events(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *reads;
    long first;
    Events events = {0};
    Form *form = &events.form;
    if (!PyArg_ParseTuple(args, "Oly#y#", &reads, &first, &form->before, &form->before_bytes, &form->behind, &form->behind_bytes))
        return NULL;
    events.list = PyList_New(0);
    events.kind = PyUnicode_InternFromString("message");
    Py_ssize_t count = PyList_Size(reads), read = 0, all = 0, bytes;
    int more = events.list == NULL || events.kind == NULL || count < 0 ? -1 : 1;
    for (; more > 0 && read < count; read += more > 0) {
        char *data;
        more = PyBytes_AsStringAndSize(PyList_GetItem(reads, read), &data, &bytes)
            ? -1 : add_events(&events, data, bytes, first + read);
        all += more > 0 ? bytes : 0;
    }
    PyObject *result = more < 0 || end_same(&events) ? NULL : Py_BuildValue("(Onn)", events.list, read, all);
    Py_XDECREF(events.same);
    Py_XDECREF(events.list);
    Py_XDECREF(events.kind);
    return result;
}

static PyMethodDef functions[] = {{"plain_events", plain_events, METH_VARARGS, NULL}, {NULL}};

static int add_types(PyObject *module) {
    PyObject *reader = PyType_FromSpec(&spec);
    int failed = reader == NULL || PyModule_AddObjectRef(module, "Reader", reader) ||
        PyModule_AddIntConstant(module, "INTERFACE", INTERFACE);
    Py_XDECREF(reader);
    return failed ? -1 : 0;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, add_types}, {0, NULL}};

static PyModuleDef module = {PyModuleDef_HEAD_INIT, "_reader", NULL, 0, functions, module_slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__reader(void) {
    return PyModuleDef_Init(&module);
}

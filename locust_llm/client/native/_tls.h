/* The reading side of a TLS 1.3 connection, after its handshake: see _tls.c. */
#ifndef LOCUST_LLM_TLS_H
#define LOCUST_LLM_TLS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#define MAX_RECORD (5 + 16384 + 256)  /* RFC 8446, 5.2: header, and the most that is encrypted */
#define BAD_RECORD (-1)
#define NO_DATA (-2)             /* records without data, and without end, as tls.py has it */
#define MAX_WITHOUT_DATA (1 << 18)

typedef struct Opener Opener;

extern PyType_Spec opener_spec;

/* Decrypts what came over the socket. `plain` has room for `bytes` and MAX_RECORD more; how many bytes it got. By one thread
 * at a time; without Python's lock. */
size_t opened(Opener *opener, const char *data, size_t bytes, char *plain);

/* The peer has said that it sends no more. */
int opener_closed(const Opener *opener);

/* 0; the number of the peer's alert (RFC 8446, 6); BAD_RECORD; or NO_DATA. What came before it was given. */
int opener_failure(const Opener *opener);

#endif

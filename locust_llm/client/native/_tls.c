/* The reading side of a TLS 1.3 connection, after its handshake: records in, plain bytes out (RFC 8446, 5.2 and 7).
 *
 * Python's ssl makes the handshake, with all of its policy, and goes on to write; it tells the secret of what the server
 * sends (see key_log.py). The ciphers are libcrypto's, looked up when the first secret comes: nothing of it is needed to
 * compile or to install, and its version need not be that of Python's ssl.
 */
#define _GNU_SOURCE
#include "_tls.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define HEADER 5
#define TAG 16
#define NONCE 12
#define MAX_HASH 48
#define SET_TAG 0x11  /* EVP_CTRL_AEAD_SET_TAG */

enum { CHANGE_CIPHER_SPEC = 20, ALERT, HANDSHAKE, APPLICATION_DATA };
enum { NEW_SESSION_TICKET = 4, KEY_UPDATE = 24 };
enum { CLOSE_NOTIFY = 0, USER_CANCELED = 90 };

typedef unsigned char Byte;
typedef struct evp_cipher_ctx_st Context;
typedef struct evp_cipher_st Cipher;
typedef struct evp_md_st Hash;

static struct {
    Context *(*new_context)(void);
    void (*free_context)(Context *);
    int (*init)(Context *, const Cipher *, void *, const Byte *, const Byte *);
    int (*update)(Context *, Byte *, int *, const Byte *, int);
    int (*final)(Context *, Byte *, int *);
    int (*control)(Context *, int, int, void *);
    Byte *(*hmac)(const Hash *, const void *, int, const Byte *, size_t, Byte *, unsigned int *);
    const Cipher *(*aes_128_gcm)(void), *(*aes_256_gcm)(void), *(*chacha20_poly1305)(void);
    const Hash *(*sha256)(void), *(*sha384)(void);
} crypto;

static const struct { const char *name; void *function; } FUNCTIONS[] = {
    {"EVP_CIPHER_CTX_new", &crypto.new_context}, {"EVP_CIPHER_CTX_free", &crypto.free_context},
    {"EVP_DecryptInit_ex", &crypto.init}, {"EVP_DecryptUpdate", &crypto.update}, {"EVP_DecryptFinal_ex", &crypto.final},
    {"EVP_CIPHER_CTX_ctrl", &crypto.control}, {"HMAC", &crypto.hmac}, {"EVP_aes_128_gcm", &crypto.aes_128_gcm},
    {"EVP_aes_256_gcm", &crypto.aes_256_gcm}, {"EVP_chacha20_poly1305", &crypto.chacha20_poly1305},
    {"EVP_sha256", &crypto.sha256}, {"EVP_sha384", &crypto.sha384},
};

static const struct {
    const char *name;
    const Cipher *(**cipher)(void);
    const Hash *(**hash)(void);
    size_t key, secret;  /* bytes */
} SUITES[] = {
    {"TLS_AES_128_GCM_SHA256", &crypto.aes_128_gcm, &crypto.sha256, 16, 32},
    {"TLS_AES_256_GCM_SHA384", &crypto.aes_256_gcm, &crypto.sha384, 32, 48},
    {"TLS_CHACHA20_POLY1305_SHA256", &crypto.chacha20_poly1305, &crypto.sha256, 32, 32},
};
#define NUM_SUITES ((int)(sizeof SUITES / sizeof *SUITES))

struct Opener {
    PyObject_HEAD
    Context *context;
    int suite;
    Byte secret[MAX_HASH], nonce[NONCE];
    uint64_t sequence;       /* of the next record */
    Byte *part;              /* of a record whose rest has not come; NULL: none */
    size_t part_bytes;
    size_t to_skip;          /* of a ticket that goes on in the next record */
    size_t without_data;     /* bytes, the last in a row */
    bool closed;
    bool update_owed;        /* the peer waits for a new key of ours, which only Python's ssl could make */
    int failure;
};

/* With Python's lock. */
static bool has_crypto(void) {
    static const char *const names[] = {"libcrypto.so.3", "libcrypto.so.1.1", "libcrypto.so"};
    static bool found;
    for (size_t i = 0; i < sizeof names / sizeof *names && !found; i++) {
        void *library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        found = library != NULL;
        for (size_t j = 0; found && j < sizeof FUNCTIONS / sizeof *FUNCTIONS; j++) {
            void *function = dlsym(library, FUNCTIONS[j].name);
            memcpy(FUNCTIONS[j].function, &function, sizeof function);
            found = function != NULL;
        }
    }
    return found;
}

/* HKDF-Expand-Label without context (RFC 8446, 7.1; RFC 5869, 2.3), of at most one block. */
static bool expand(const Opener *opener, const char *label, Byte *out, size_t bytes) {
    Byte info[32], block[64];
    size_t length = strlen(label), secret = SUITES[opener->suite].secret;
    info[0] = 0;
    info[1] = (Byte)bytes;
    info[2] = (Byte)(6 + length);
    memcpy(info + 3, "tls13 ", 6);
    memcpy(info + 9, label, length);
    info[9 + length] = 0;  /* no context */
    info[10 + length] = 1;  /* the first block */
    bool done = crypto.hmac((*SUITES[opener->suite].hash)(), opener->secret, (int)secret, info, 11 + length, block, NULL) != NULL;
    if (done)
        memcpy(out, block, bytes);
    explicit_bzero(block, sizeof block);
    return done;
}

static bool set_keys(Opener *opener) {
    Byte key[32];
    opener->sequence = 0;
    bool done = expand(opener, "key", key, SUITES[opener->suite].key) && expand(opener, "iv", opener->nonce, NONCE) &&
        crypto.init(opener->context, (*SUITES[opener->suite].cipher)(), NULL, key, NULL);
    explicit_bzero(key, sizeof key);
    return done;
}

static size_t record_bytes(const Byte *header) { return HEADER + ((size_t)header[3] << 8 | header[4]); }

/* What a record holds, its type and the zeros behind it too (RFC 8446, 5.2); -1: it cannot be decrypted. */
static int decrypt(Opener *opener, const Byte *record, size_t bytes, Byte *plain) {
    Byte nonce[NONCE];
    int got, none, sealed = (int)(bytes - HEADER - TAG);
    memcpy(nonce, opener->nonce, NONCE);
    for (int i = 0; i < 8; i++)
        nonce[NONCE - 1 - i] ^= (Byte)(opener->sequence >> 8 * i);
    opener->sequence++;
    return crypto.init(opener->context, NULL, NULL, NULL, nonce) &&
        crypto.update(opener->context, NULL, &none, record, HEADER) &&
        crypto.update(opener->context, plain, &got, record + HEADER, sealed) &&
        crypto.control(opener->context, SET_TAG, TAG, (Byte *)record + HEADER + sealed) &&
        crypto.final(opener->context, plain + got, &none) ? sealed : -1;
}

/* Tickets, which nobody wants, and a new key. */
static void handshake(Opener *opener, const Byte *message, size_t bytes) {
    while (bytes) {
        if (opener->to_skip) {
            size_t some = opener->to_skip < bytes ? opener->to_skip : bytes;
            opener->to_skip -= some;
            message += some;
            bytes -= some;
        } else if (bytes >= 4 && message[0] == NEW_SESSION_TICKET) {
            opener->to_skip = 4 + ((size_t)message[1] << 16 | (size_t)message[2] << 8 | message[3]);
        } else if (bytes == 5 && message[0] == KEY_UPDATE && message[3] == 1 && message[4] <= 1) {
            opener->update_owed |= message[4];
            if (!expand(opener, "traffic upd", opener->secret, SUITES[opener->suite].secret) || !set_keys(opener))
                opener->failure = BAD_RECORD;
            return;
        } else {
            opener->failure = BAD_RECORD;
            return;
        }
    }
}

static void alert(Opener *opener, const Byte *message, size_t bytes) {
    if (bytes != 2)
        opener->failure = BAD_RECORD;
    else if (message[1] == CLOSE_NOTIFY)
        opener->closed = true;
    else if (message[1] != USER_CANCELED)
        opener->failure = message[1];
}

/* How many bytes of the answer the record holds. */
static size_t open_record(Opener *opener, const Byte *record, size_t bytes, Byte *plain) {
    if (record[0] == CHANGE_CIPHER_SPEC && bytes == HEADER + 1)  /* of those that seem to speak TLS 1.2: means nothing */
        return 0;
    int got = record[0] == APPLICATION_DATA && bytes > HEADER + TAG ? decrypt(opener, record, bytes, plain) : -1;
    while (got > 0 && plain[got - 1] == 0)
        got--;
    if (got <= 0) {
        opener->failure = BAD_RECORD;
        return 0;
    }
    size_t held = (size_t)got - 1;
    Byte type = plain[held];
    if (type == APPLICATION_DATA && !opener->to_skip)
        return held;
    if (type == HANDSHAKE)
        handshake(opener, plain, held);
    else if (type == ALERT)
        alert(opener, plain, held);
    else
        opener->failure = BAD_RECORD;
    return 0;
}

/* The next whole record, NULL if its rest has not come; `*data` goes behind what was used. */
static const Byte *next_record(Opener *opener, const Byte **data, size_t *bytes) {
    const Byte *record = *data;
    if (!opener->part_bytes && *bytes >= HEADER && *bytes >= record_bytes(record)) {
        *data += record_bytes(record);
        *bytes -= record_bytes(record);
        return record;
    }
    if (opener->part == NULL && (opener->part = malloc(MAX_RECORD)) == NULL) {
        opener->failure = BAD_RECORD;
        return NULL;
    }
    for (size_t want = HEADER; ; want = record_bytes(opener->part)) {
        if (want > MAX_RECORD) {
            opener->failure = BAD_RECORD;
            return NULL;
        }
        size_t some = opener->part_bytes < want ? want - opener->part_bytes : 0;
        some = some < *bytes ? some : *bytes;
        memcpy(opener->part + opener->part_bytes, *data, some);
        opener->part_bytes += some;
        *data += some;
        *bytes -= some;
        if (opener->part_bytes < want)
            return NULL;
        if (want > HEADER || record_bytes(opener->part) == HEADER) {
            opener->part_bytes = 0;
            return opener->part;
        }
    }
}

size_t opened(Opener *opener, const char *data, size_t bytes, char *plain) {
    const Byte *at = (const Byte *)data;
    size_t got = 0, came = bytes;
    while (bytes && !opener->closed && !opener->failure) {
        const Byte *record = next_record(opener, &at, &bytes);
        if (record == NULL)
            break;
        if (record_bytes(record) > MAX_RECORD)
            opener->failure = BAD_RECORD;
        else
            got += open_record(opener, record, record_bytes(record), (Byte *)plain + got);
    }
    opener->without_data = got ? 0 : opener->without_data + came;
    if (opener->without_data > MAX_WITHOUT_DATA && !opener->failure)
        opener->failure = NO_DATA;
    if (!opener->part_bytes) {
        free(opener->part);
        opener->part = NULL;
    }
    return got;
}

int opener_closed(const Opener *opener) { return opener->closed; }

int opener_failure(const Opener *opener) { return opener->failure; }

/* -- what Python calls, with its lock -------------------------------------------------------------------------------------- */

static PyObject *new_opener(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(keywords)) {
    const char *name, *secret;
    Py_ssize_t bytes;
    int suite = 0;
    if (!PyArg_ParseTuple(args, "sy#", &name, &secret, &bytes))
        return NULL;
    while (suite < NUM_SUITES && strcmp(SUITES[suite].name, name))
        suite++;
    if (suite == NUM_SUITES || (size_t)bytes != SUITES[suite].secret)
        return PyErr_Format(PyExc_ValueError, "no cipher suite %s with a secret of %zd bytes", name, bytes);
    if (!has_crypto()) {
        PyErr_SetString(PyExc_OSError, "no libcrypto");
        return NULL;
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Opener *opener = (Opener *)allocate(type, 0);
    if (opener == NULL)
        return NULL;
    opener->suite = suite;
    memcpy(opener->secret, secret, bytes);
    opener->context = crypto.new_context();
    if (opener->context == NULL || !set_keys(opener)) {
        Py_DECREF(opener);
        PyErr_SetString(PyExc_OSError, "libcrypto has not that cipher");
        return NULL;
    }
    return (PyObject *)opener;
}

static void free_opener(Opener *opener) {
    PyTypeObject *type = Py_TYPE((PyObject *)opener);
    if (opener->context != NULL)
        crypto.free_context(opener->context);
    free(opener->part);
    explicit_bzero(opener->secret, sizeof opener->secret);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(opener);
    Py_DECREF(type);
}

static PyObject *received(Opener *opener, PyObject *data) {
    char *bytes;
    Py_ssize_t count;
    if (PyBytes_AsStringAndSize(data, &bytes, &count))
        return NULL;
    char *plain = malloc(count + MAX_RECORD);
    if (plain == NULL)
        return PyErr_NoMemory();
    PyObject *result = PyBytes_FromStringAndSize(plain, opened(opener, bytes, count, plain));
    free(plain);
    return result;
}

static PyObject *get_closed(Opener *opener, void *Py_UNUSED(closure)) {
    return PyBool_FromLong(opener->closed);
}

static PyObject *get_update_owed(Opener *opener, void *Py_UNUSED(closure)) {
    return PyBool_FromLong(opener->update_owed);
}

static PyObject *get_failure(Opener *opener, void *Py_UNUSED(closure)) { return PyLong_FromLong(opener->failure); }

static PyMethodDef methods[] = {{"received", (PyCFunction)received, METH_O, NULL}, {NULL}};

static PyGetSetDef attributes[] = {
    {"closed", (getter)get_closed, NULL, NULL, NULL}, {"update_owed", (getter)get_update_owed, NULL, NULL, NULL},
    {"failure", (getter)get_failure, NULL, NULL, NULL}, {NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, new_opener}, {Py_tp_dealloc, free_opener}, {Py_tp_methods, methods}, {Py_tp_getset, attributes}, {0, NULL},
};

PyType_Spec opener_spec = {"locust_llm.client.native._reader.Opener", sizeof(Opener), 0, Py_TPFLAGS_DEFAULT, slots};

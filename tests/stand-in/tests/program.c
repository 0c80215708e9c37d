/* A program of two ranks in C, written against declarations of our own. It judges the stand-in by the documented
 * interface and by nothing of this project.
 *
 *   program threads          two threads, one device each, by root info
 *   program all              two threads, communicators of HcclCommInitAll
 *   program rank R FILE      one of two processes; rank 0 leaves the root info in FILE
 *   program count            prints the devices and the chip's name
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef void *handle;
typedef struct { char bytes[4108]; } root_info;
typedef struct { int32_t type; void *buf; uint64_t count; int32_t dtype; uint32_t peer; } item;

enum { H2D = 1, D2H = 2, I32 = 2, F32 = 4, U8 = 7, SUM = 0 };

int aclInit(const char *path);
const char *aclGetRecentErrMsg(void);
const char *aclrtGetSocName(void);
int aclrtGetDeviceCount(uint32_t *count);
int aclrtSetDevice(int32_t device);
int aclrtResetDevice(int32_t device);
int aclrtCreateStream(handle *stream);
int aclrtDestroyStream(handle stream);
int aclrtSynchronizeStream(handle stream);
int aclrtCreateEvent(handle *event);
int aclrtDestroyEvent(handle event);
int aclrtRecordEvent(handle event, handle stream);
int aclrtQueryEventStatus(handle event, int32_t *status);
int aclrtEventElapsedTime(float *ms, handle start, handle end);
int aclrtMalloc(void **memory, size_t bytes, int32_t policy);
int aclrtFree(void *memory);
int aclrtMemcpy(void *to, size_t room, const void *from, size_t bytes, int32_t kind);
int aclrtMemcpyAsync(void *to, size_t room, const void *from, size_t bytes, int32_t kind, handle stream);

int HcclGetRootInfo(root_info *info);
int HcclCommInitRootInfo(uint32_t ranks, const root_info *info, uint32_t rank, handle *comm);
int HcclCommInitAll(uint32_t n, int32_t *devices, handle *comms);
int HcclCommDestroy(handle comm);
int HcclGetRankId(handle comm, uint32_t *rank);
int HcclGetRankSize(handle comm, uint32_t *size);
const char *HcclGetErrorString(int code);
int HcclAllReduce(void *send, void *recv, uint64_t count, int32_t type, int32_t op, handle comm, handle stream);
int HcclBroadcast(void *buf, uint64_t count, int32_t type, uint32_t root, handle comm, handle stream);
int HcclSend(void *buf, uint64_t count, int32_t type, uint32_t to, handle comm, handle stream);
int HcclRecv(void *buf, uint64_t count, int32_t type, uint32_t from, handle comm, handle stream);
int HcclAlltoAll(const void *send, uint64_t send_count, int32_t send_type, const void *recv, uint64_t recv_count,
    int32_t recv_type, handle comm, handle stream);
int HcclBatchSendRecv(item *items, uint32_t n, handle comm, handle stream);
int HcclBarrier(handle comm, handle stream);

#define CHECK(truth) do { \
    if (!(truth)) { fprintf(stderr, "line %d: not so: %s\n", __LINE__, #truth); exit(1); } \
} while (0)

#define OK(call) do { \
    int code_ = (call); \
    const char *why_ = code_ ? aclGetRecentErrMsg() : NULL; \
    if (code_) { fprintf(stderr, "line %d: %s: %d, %s\n", __LINE__, #call, code_, why_ ? why_ : "?"); exit(1); } \
} while (0)

/* The call returns this code, and says why once. */
#define FAILS(call, wanted, text) do { \
    int code_ = (call); \
    const char *why_ = aclGetRecentErrMsg(); \
    if (code_ != (wanted) || !why_ || !strstr(why_, text)) { \
        fprintf(stderr, "line %d: %s: %d, %s\n", __LINE__, #call, code_, why_ ? why_ : "(no text)"); exit(1); } \
    CHECK(aclGetRecentErrMsg() == NULL); \
} while (0)

enum { N = 1003, RANKS = 2 };

static void reduce(uint32_t rank, handle comm, handle stream) {
    float *host = malloc(N * sizeof *host);
    void *send, *recv;
    handle start, end;
    for (int i = 0; i < N; i++) host[i] = (float)(i * RANKS + (int)rank);
    OK(aclrtMalloc(&send, N * sizeof *host, 0));
    OK(aclrtMalloc(&recv, N * sizeof *host, 0));
    OK(aclrtCreateEvent(&start));
    OK(aclrtCreateEvent(&end));
    OK(aclrtMemcpy(send, N * sizeof *host, host, N * sizeof *host, H2D));
    OK(aclrtRecordEvent(start, stream));
    OK(HcclAllReduce(send, recv, N, F32, SUM, comm, stream));
    OK(HcclAllReduce(recv, recv, N, F32, SUM, comm, stream)); /* in place */
    OK(aclrtRecordEvent(end, stream));
    OK(aclrtMemcpyAsync(host, N * sizeof *host, recv, N * sizeof *host, D2H, stream));
    OK(aclrtSynchronizeStream(stream));
    for (int i = 0; i < N; i++) CHECK(host[i] == (float)(2 * (i * RANKS * RANKS + 1)));
    float ms = -1;
    int32_t passed = 0;
    OK(aclrtEventElapsedTime(&ms, start, end));
    OK(aclrtQueryEventStatus(end, &passed));
    CHECK(ms >= 0 && passed == 1);

    /* Refusals on the host, before any peer is needed. */
    FAILS(HcclAllReduce(host, recv, N, F32, SUM, comm, stream), 1, "EI0003");
    FAILS(HcclAllReduce(send, recv, N, U8, SUM, comm, stream), 5, "not support");
    FAILS(HcclAllReduce(send, recv, N, F32, 9, comm, stream), 1, "EI0003");
    FAILS(HcclAllReduce(send, recv, 1ull << 35, F32, SUM, comm, stream), 1, "count");
    FAILS(HcclAllReduce(NULL, recv, N, F32, SUM, comm, stream), 2, "null");
    FAILS(HcclAlltoAll(send, 4, F32, send, 4, F32, comm, stream), 1, "differ");
    FAILS(aclrtMemcpy(send, N * sizeof *host, host, N * sizeof *host, D2H), 100000, "device memory");
    FAILS(aclrtMemcpy(send, 4, host, 8, H2D), 100000, "copy of 8 bytes");
    CHECK(strcmp(HcclGetErrorString(1), "parameter error") == 0);
    /* No elements: success at once. */
    OK(HcclAllReduce(NULL, NULL, 0, F32, SUM, comm, stream));
    OK(HcclSend(NULL, 0, F32, 1 - rank, comm, stream));

    OK(aclrtDestroyEvent(start));
    OK(aclrtDestroyEvent(end));
    OK(aclrtFree(send));
    OK(aclrtFree(recv));
    FAILS(aclrtFree(recv), 100000, "no live device memory");
    free(host);
}

static void move_about(uint32_t rank, handle comm, handle stream) {
    int32_t host[4] = {7 + (int32_t)rank, 70 + (int32_t)rank, 700 + (int32_t)rank, -1};
    void *mine, *theirs;
    OK(aclrtMalloc(&mine, sizeof host, 0));
    OK(aclrtMalloc(&theirs, sizeof host, 0));
    OK(aclrtMemcpy(mine, sizeof host, host, sizeof host, H2D));
    OK(HcclBroadcast(mine, 2, I32, 1, comm, stream));
    /* Rank 0 speaks first. */
    if (rank == 0) OK(HcclSend(mine, 3, I32, 1, comm, stream));
    OK(HcclRecv(theirs, 3, I32, 1 - rank, comm, stream));
    if (rank == 1) OK(HcclSend(mine, 3, I32, 0, comm, stream));
    OK(aclrtSynchronizeStream(stream));
    OK(aclrtMemcpy(host, sizeof host, theirs, 12, D2H));
    CHECK(host[0] == 8 && host[1] == 71 && host[2] == 700 + (int32_t)(1 - rank));
    item both[2] = {{0, mine, 4, I32, 1 - rank}, {1, theirs, 4, I32, 1 - rank}};
    OK(HcclBatchSendRecv(both, 2, comm, stream));
    OK(HcclBarrier(comm, stream));
    OK(aclrtSynchronizeStream(stream));
    OK(aclrtMemcpy(host, sizeof host, theirs, 16, D2H));
    CHECK(host[2] == 700 + (int32_t)(1 - rank) && host[3] == -1);
    OK(aclrtFree(mine));
    OK(aclrtFree(theirs));
}

static void use(uint32_t rank, handle comm) {
    uint32_t own = 9, size = 9;
    handle stream;
    OK(HcclGetRankId(comm, &own));
    OK(HcclGetRankSize(comm, &size));
    CHECK(own == rank && size == RANKS);
    OK(aclrtCreateStream(&stream));
    reduce(rank, comm, stream);
    move_about(rank, comm, stream);
    OK(HcclCommDestroy(comm));
    FAILS(HcclCommDestroy(comm), 1, "no such communicator");
    OK(aclrtDestroyStream(stream));
    OK(aclrtResetDevice((int32_t)rank));
}

struct start { uint32_t rank; root_info info; handle comm; };

static void *by_root(void *arg) {
    struct start *start = arg;
    handle comm;
    OK(aclrtSetDevice((int32_t)start->rank));
    OK(HcclCommInitRootInfo(RANKS, &start->info, start->rank, &comm));
    use(start->rank, comm);
    return NULL;
}

static void *by_all(void *arg) {
    struct start *start = arg;
    OK(aclrtSetDevice((int32_t)start->rank));
    use(start->rank, start->comm);
    return NULL;
}

static void threads(void *(*body)(void *), struct start starts[RANKS]) {
    pthread_t ids[RANKS];
    for (uint32_t i = 0; i < RANKS; i++) CHECK(pthread_create(&ids[i], NULL, body, &starts[i]) == 0);
    for (uint32_t i = 0; i < RANKS; i++) CHECK(pthread_join(ids[i], NULL) == 0);
}

/* The root leaves the info under a name that is complete when it is there. */
static void leave(const char *path, const root_info *info) {
    char draft[4096];
    snprintf(draft, sizeof draft, "%s.draft", path);
    FILE *file = fopen(draft, "wb");
    CHECK(file && fwrite(info, sizeof *info, 1, file) == 1 && fclose(file) == 0 && rename(draft, path) == 0);
}

static void find(const char *path, root_info *info) {
    FILE *file;
    while (!(file = fopen(path, "rb"))) usleep(1000);
    CHECK(fread(info, sizeof *info, 1, file) == 1);
    fclose(file);
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    struct start starts[RANKS];
    memset(starts, 0, sizeof starts);
    OK(aclInit(NULL));
    FAILS(aclInit(NULL), 100002, "already");
    for (uint32_t i = 0; i < RANKS; i++) starts[i].rank = i;
    if (strcmp(mode, "count") == 0) {
        uint32_t count;
        OK(aclrtGetDeviceCount(&count));
        FAILS(aclrtSetDevice((int32_t)count), 107001, "no device");
        printf("%u %s\n", count, aclrtGetSocName());
    } else if (strcmp(mode, "threads") == 0) {
        OK(aclrtSetDevice(0));
        OK(HcclGetRootInfo(&starts[0].info));
        OK(aclrtResetDevice(0));
        starts[1].info = starts[0].info;
        threads(by_root, starts);
    } else if (strcmp(mode, "all") == 0) {
        int32_t devices[RANKS] = {0, 1}, same[RANKS] = {1, 1};
        handle comms[RANKS];
        FAILS(HcclCommInitAll(RANKS, same, comms), 1, "twice");
        OK(HcclCommInitAll(RANKS, devices, comms));
        for (uint32_t i = 0; i < RANKS; i++) starts[i].comm = comms[i];
        threads(by_all, starts);
    } else if (strcmp(mode, "rank") == 0 && argc == 4) {
        struct start *own = &starts[atoi(argv[2]) != 0];
        OK(aclrtSetDevice((int32_t)own->rank));
        if (own->rank == 0) {
            OK(HcclGetRootInfo(&own->info));
            leave(argv[3], &own->info);
        } else {
            find(argv[3], &own->info);
        }
        OK(aclrtResetDevice((int32_t)own->rank));
        by_root(own);
    } else {
        fprintf(stderr, "what?\n");
        return 2;
    }
    return 0;
}

/* Stand-ins for AscendCL and HCCL, written for these tests against declarations of our own. One source, four libraries:
 * PART_ACL, PART_HCCL, PART_HCOMM, PART_PRELOAD. They count what is alive and keep what they were called with. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))

#ifdef PART_ACL
static int live, inits, devices_set, current_device = -1, stream_stuck, default_contexts[2];
static int fail_code;
static const char *fail_symbol = "", *said;
static void *current;

API int stand_in_live(void) { return live; }
API int stand_in_devices_set(void) { return devices_set; }
API void stand_in_stuck(int stuck) { stream_stuck = stuck; }
API void stand_in_fail(const char *symbol, int code) { fail_symbol = symbol; fail_code = code; }
API void stand_in_say(const char *text) { said = text; }

#define FAULT() do { if (strcmp(fail_symbol, __func__) == 0) return fail_code; } while (0)

static int make(void **out) { *out = malloc(1); live++; return 0; }
static int unmake(void *object) { if (!object) return 100000; free(object); live--; return 0; }

API int aclInit(const char *path) { FAULT(); return path ? 100000 : inits++ ? 100002 : 0; }
API const char *aclGetRecentErrMsg(void) { const char *text = said; said = NULL; return text; }
API const char *aclrtGetSocName(void) { return "Ascend910B1"; }
API int aclrtGetVersion(int32_t *a, int32_t *b, int32_t *c) { *a = 1; *b = 17; *c = 5; return 0; }
API int aclrtGetDeviceCount(uint32_t *count) { *count = 2; return 0; }
API int aclrtSetDevice(int32_t id) {
    FAULT();
    if (id < 0 || id > 1) return 107001;
    current_device = id; current = &default_contexts[id]; devices_set++;
    return 0;
}
API int aclrtResetDevice(int32_t id) { FAULT(); (void)id; devices_set--; return live ? 500000 : 0; }
API int aclrtGetDevice(int32_t *id) { *id = current_device; return current ? 0 : 107002; }
API int aclrtGetCurrentContext(void **out) { FAULT(); *out = current; return current ? 0 : 107002; }
API int aclrtSetCurrentContext(void *context) { FAULT(); current = context; return 0; }
API int aclrtCreateContext(void **out, int32_t id) { (void)id; make(out); current = *out; return 0; }
API int aclrtDestroyContext(void *context) { return unmake(context); }
API int aclrtCreateStream(void **out) { FAULT(); return current ? make(out) : 107002; }
API int aclrtDestroyStream(void *stream) { FAULT(); return unmake(stream); }
API int aclrtSynchronizeStream(void *stream) { FAULT(); (void)stream; return 0; }
API int aclrtSynchronizeStreamWithTimeout(void *stream, int32_t ms) {
    FAULT(); (void)stream;
    return ms < 0 ? 100000 : stream_stuck ? 507046 : 0;
}
API int aclrtStreamQuery(void *stream, int32_t *status) { (void)stream; *status = stream_stuck; return 0; }
API int aclrtCreateEvent(void **out) { return make(out); }
API int aclrtDestroyEvent(void *event) { return unmake(event); }
API int aclrtRecordEvent(void *event, void *stream) { (void)event; (void)stream; return 0; }
API int aclrtStreamWaitEvent(void *stream, void *event) { (void)event; (void)stream; return 0; }
API int aclrtQueryEventStatus(void *event, int32_t *status) { (void)event; *status = !stream_stuck; return 0; }
API int aclrtEventElapsedTime(float *ms, void *a, void *b) { *ms = a == b ? 0.0f : 2.5f; return 0; }
API int aclrtMalloc(void **out, size_t size, int32_t policy) {
    if (policy != 0) return 100000;
    if (size > ((size_t)1 << 40)) return 207001;
    *out = malloc(size); live++;
    return 0;
}
API int aclrtFree(void *memory) { return unmake(memory); }
API int aclrtMemcpy(void *dst, size_t room, const void *src, size_t count, int32_t kind) {
    if (count > room || (kind != 1 && kind != 2)) return 100000;
    memcpy(dst, src, count);
    return 0;
}
API int aclrtMemset(void *dev, size_t room, int32_t value, size_t count) {
    if (count > room) return 100000;
    memset(dev, value, count);
    return 0;
}
API int aclrtGetMemInfo(int32_t attr, size_t *free_bytes, size_t *total) {
    *free_bytes = 1000 + (size_t)attr; *total = 2000 + (size_t)attr;
    return 0;
}
/* 512 bytes: the whole version, four parts, a reserve. */
struct version { char whole[128], part[4][64], reserve[128]; };
API int aclsysGetCANNVersion(int32_t package, struct version *out) {
    strcpy(out->whole, package == 3 ? "7.7.T17" : "8.1.RC1");
    memset(out->reserve, 'x', sizeof out->reserve);
    return 0;
}
#endif

#if defined PART_HCCL || defined PART_HCOMM || defined PART_PRELOAD
#define STRING(x) #x
#define NAME_OF(x) STRING(x)
API const char *HcclGetErrorString(int32_t code) { return code == 9 ? "timeout of " NAME_OF(PART) : NULL; }
#endif

#ifdef PART_HCCL
struct item { int32_t kind; void *buf; uint64_t count; int32_t type; uint32_t remote; };
static uint64_t seen[16];
API uint64_t stand_in_seen(int i) { return seen[i]; }
/* One rank: the sum is the input. */
API int HcclAllReduce(void *send, void *recv, uint64_t count, int32_t type, int32_t op, void *comm, void *stream) {
    if (type != 4) return 5;
    seen[0] = count; seen[1] = (uint64_t)op; seen[2] = (uint64_t)comm; seen[3] = (uint64_t)stream;
    memcpy(recv, send, count * 4);
    return 0;
}
API int HcclAlltoAllV(const void *send, const void *counts, const void *displs, int32_t type, const void *recv,
    const void *rcounts, const void *rdispls, int32_t rtype, void *comm, void *stream) {
    seen[0] = ((const uint64_t *)counts)[1]; seen[1] = ((const uint64_t *)displs)[1];
    seen[2] = ((const uint64_t *)rcounts)[1]; seen[3] = ((const uint64_t *)rdispls)[1];
    seen[4] = (uint64_t)type; seen[5] = (uint64_t)rtype; seen[6] = (uint64_t)comm; seen[7] = (uint64_t)stream;
    return send == recv ? 1 : 0;
}
API int HcclBatchSendRecv(struct item *items, uint32_t n, void *comm, void *stream) {
    (void)comm; (void)stream;
    for (uint32_t i = 0; i < n; i++) {
        seen[5 * i] = (uint64_t)items[i].kind; seen[5 * i + 1] = (uint64_t)items[i].buf;
        seen[5 * i + 2] = items[i].count; seen[5 * i + 3] = (uint64_t)items[i].type;
        seen[5 * i + 4] = items[i].remote;
    }
    return 0;
}
#endif

#ifdef PART_HCOMM
struct root_info { char bytes[4108]; };
struct config {
    struct { size_t size; uint32_t magic, version; uint64_t zero; } head;
    uint32_t buffer_size, deterministic;
    char name[128], udi[128];
    uint32_t mode, traffic_class, service_level, world_rank;
    uint64_t job;
    uint8_t zero_copy;
    int32_t exec_timeout;
    char algo[1600], retry_enable[50], retry_params[128], buffer_name[128];
    uint32_t qos;
    uint64_t window;
    uint32_t depth;
};
union value { int32_t number; };
struct comm { uint32_t ranks, rank; int subs; char name[128]; };
static int live, destroy_code, set_to = -7;
static struct config seen;

API int stand_in_comms(void) { return live; }
API void stand_in_destroy_code(int code) { destroy_code = code; }
API int stand_in_config_is(uint32_t buffer, int32_t timeout, const char *name, const char *algo, uint64_t job) {
    return seen.buffer_size == buffer && seen.exec_timeout == timeout && strcmp(seen.name, name) == 0 &&
        strcmp(seen.algo, algo) == 0 && seen.job == job && seen.deterministic == 0xffffffffu && seen.window == 16 &&
        seen.qos == 0xffffffffu && seen.depth == 0xffffffffu && seen.zero_copy == 0 && seen.mode == 0;
}
API int stand_in_config_layout(void) {
    return sizeof(struct config) == 2248 && offsetof(struct config, exec_timeout) == 316 &&
        offsetof(struct config, buffer_name) == 2098 && offsetof(struct config, window) == 2232;
}
API uint32_t HcclGetCommConfigCapability(void) { return 12; }
API int HcclGetRootInfo(struct root_info *info) {
    for (size_t i = 0; i < sizeof *info; i++) info->bytes[i] = (char)(i * 7);
    return 0;
}
API int HcclCommInitRootInfo(uint32_t ranks, const struct root_info *info, uint32_t rank, void **out) {
    for (size_t i = 0; i < sizeof *info; i++) if (info->bytes[i] != (char)(i * 7)) return 1;
    struct comm *comm = calloc(1, sizeof *comm);
    comm->ranks = ranks; comm->rank = rank; strcpy(comm->name, "stand-in");
    *out = comm; live++;
    return 0;
}
API int HcclCommInitRootInfoConfig(uint32_t ranks, const struct root_info *info, uint32_t rank,
    const struct config *config, void **out) {
    if (config->head.magic != 0xf0f0f0f0u || config->head.zero != 0) return 1;
    if (config->head.version == 9 && config->head.size != 2232) return 1;
    seen = *config;
    int code = HcclCommInitRootInfo(ranks, info, rank, out);
    if (code == 0 && config->name[0]) strcpy(((struct comm *)*out)->name, config->name);
    return code;
}
API int HcclCreateSubCommConfig(void **comm, uint32_t n, uint32_t *ids, uint64_t id, uint32_t rank,
    struct config *config, void **out) {
    (void)config;
    if (!ids) return id == 0xffffffffu && n == 0 ? 0 : 1;
    struct comm *sub = calloc(1, sizeof *sub);
    sub->ranks = n; sub->rank = rank;
    sub->name[0] = (char)('0' + ids[rank]);
    ((struct comm *)*comm)->subs++;
    *out = sub; live++;
    return 0;
}
API int HcclCommInitAll(uint32_t n, int32_t *devices, void **out) {
    for (uint32_t i = 0; i < n; i++) {
        struct comm *comm = calloc(1, sizeof *comm);
        comm->ranks = n; comm->rank = i; comm->name[0] = (char)('0' + devices[i]);
        out[i] = comm; live++;
    }
    return 0;
}
API int HcclCommDestroy(void *comm) { if (destroy_code) return destroy_code; free(comm); live--; return 0; }
API int HcclGetRankId(void *comm, uint32_t *rank) { *rank = ((struct comm *)comm)->rank; return 0; }
API int HcclGetRankSize(void *comm, uint32_t *size) { *size = ((struct comm *)comm)->ranks; return 0; }
API int HcclGetCommName(void *comm, char *name) { memcpy(name, ((struct comm *)comm)->name, 128); return 0; }
API int HcclGetCommAsyncError(void *comm, int32_t *error) { (void)comm; *error = 21; return 0; }
API int HcclSetConfig(int32_t config, union value value) { set_to = value.number + config; return 0; }
API int HcclGetConfig(int32_t config, union value *value) { value->number = set_to - config; return 0; }
API int HcclGroupStatusGet(_Bool *open) { *open = 1; return 0; }
API int HcclCommInitClusterInfo(const char *path, uint32_t rank, void **out) {
    (void)rank; (void)out;
    return strcmp(path, "/no/such/table.json") == 0 ? 10 : 1;
}
API int HcclCommRegCommStateCallback(const char *name, int (*call)(void *, int, void *), void *args) {
    return strcmp(name, "test") == 0 ? call(NULL, 3, args) : 1;
}
#endif

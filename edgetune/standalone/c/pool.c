/* Threads for kernels, and the functions that TVM's kernels call.
 *
 * A pool belongs to one instance: no two runs share it, so that handing out work needs no lock. The caller
 * raises `generation`, everybody works, the last one to finish lets the caller go on. Who waits stays awake
 * for a while, since the next kernel usually comes within microseconds, and then sleeps on a futex. A child of
 * a fork has the pool without its threads, and starts threads of its own at its first run.
 */
#include "internal.h"

#if defined(__x86_64__)
enum { SYS_FUTEX = 202, SYS_GETAFFINITY = 204, SYS_GETCPU = 309 };
#define PAUSE() __builtin_ia32_pause()
#elif defined(__aarch64__)
enum { SYS_FUTEX = 98, SYS_GETAFFINITY = 123, SYS_GETCPU = 168 };
#define PAUSE() __asm__ volatile("yield")
#elif defined(__riscv)
enum { SYS_FUTEX = 98, SYS_GETAFFINITY = 123, SYS_GETCPU = 168 };
#define PAUSE() __asm__ volatile("nop")
#elif defined(__arm__)
enum { SYS_FUTEX = 240, SYS_GETAFFINITY = 242, SYS_GETCPU = 345 };
#define PAUSE() __asm__ volatile("yield")
#else
#error "no standalone runtime for this architecture"
#endif

enum { FUTEX_WAIT_PRIVATE = 128, FUTEX_WAKE_PRIVATE = 129, CLOCK_MONOTONIC_ = 1 };
enum { POLLS = 64 }; /* between two looks at the clock */
enum { MAX_THREADS = 256, MAX_CORES = 4096, WORD_BITS = 8 * sizeof(unsigned long), WORDS = MAX_CORES / WORD_BITS };

/* TVM's interface of parallel kernels, see tvm/runtime/c_backend_api.h. */
typedef struct {
  void *sync_handle;
  int32_t num_task;
} et_group;
typedef int (*et_task)(int task, et_group *group, void *data);

typedef struct et_worker {
  et_pool *pool;
  int index;
  unsigned long thread;
  unsigned char *workspace;
  size_t used;
} et_worker;

struct et_pool {
  int threads, started;
  int process; /* whose threads these are: a fork's child has none of them */
  unsigned creators_core;
  uint64_t spin_ns;
  size_t workspace_bytes;
  const int32_t *cores;
  int num_cores;
  edgetune_error *error; /* of the run in progress */
  int busy;              /* a parallel kernel is running: one inside it runs serially */
  et_task task;
  void *data;
  et_group group;
  void *workspaces;
  et_worker *workers;
  /* Written by several threads, each on a cache line of its own. */
  _Alignas(64) _Atomic uint32_t generation;
  _Atomic uint32_t stop;
  _Alignas(64) _Atomic uint32_t sleeping;
  _Alignas(64) _Atomic uint32_t pending;
  _Atomic uint32_t caller_sleeps;
  _Atomic uint32_t failed;
};

static int key_once;
static unsigned key;

static void make_key(void) { pthread_key_create(&key, NULL); }

uint64_t et_now_ns(void) {
  struct et_timespec now;
  clock_gettime(CLOCK_MONOTONIC_, &now);
  return (uint64_t)now.seconds * 1000000000u + (uint64_t)now.nanoseconds;
}

/* Whether `word` still is `value` after waiting awake for at most `limit_ns`. */
static int unchanged(_Atomic uint32_t *word, uint32_t value, uint64_t limit_ns) {
  if (atomic_load_explicit(word, memory_order_acquire) != value) return 0;
  if (limit_ns == 0) return 1;
  uint64_t end = et_now_ns() + limit_ns;
  do {
    for (int i = 0; i < POLLS; i++) {
      if (atomic_load_explicit(word, memory_order_acquire) != value) return 0;
      PAUSE();
    }
    /* With more threads than cores, the one waited for may want this core. */
    sched_yield();
  } while (et_now_ns() < end);
  return 1;
}

static int work(et_pool *pool, int index) {
  for (int task = index; task < pool->group.num_task; task += pool->threads)
    if (pool->task(task, &pool->group, pool->data) != 0) return -1;
  return 0;
}

static void restrict_to_cores(const et_pool *pool) {
  if (pool->num_cores == 0) return;
  unsigned long mask[WORDS] = {0};
  for (int i = 0; i < pool->num_cores; i++) mask[pool->cores[i] / WORD_BITS] |= 1ul << pool->cores[i] % WORD_BITS;
  sched_setaffinity(0, sizeof mask, mask);
}

static unsigned this_core(void) {
  unsigned core = MAX_CORES;
  syscall(SYS_GETCPU, &core, NULL, NULL);
  return core;
}

/* Systems start a thread on its creator's core, and may leave it there for several milliseconds though others idle.
 * Only where it starts is said here: where it runs from then on is theirs to choose. */
static void leave_creators_core(const et_pool *pool) {
  unsigned core = pool->creators_core;
  unsigned long mask[WORDS] = {0}, others = 0;
  if (core >= MAX_CORES || this_core() != core || syscall(SYS_GETAFFINITY, 0L, sizeof mask, mask) <= 0) return;
  unsigned long *word = &mask[core / WORD_BITS], bit = 1ul << core % WORD_BITS;
  *word &= ~bit;
  for (int i = 0; i < WORDS; i++) others |= mask[i];
  if (others == 0 || sched_setaffinity(0, sizeof mask, mask) != 0) return;
  *word |= bit;
  sched_setaffinity(0, sizeof mask, mask);
}

static void finish(et_pool *pool) {
  if (atomic_fetch_sub(&pool->pending, 1) == 1 && atomic_load(&pool->caller_sleeps))
    syscall(SYS_FUTEX, &pool->pending, FUTEX_WAKE_PRIVATE, 1);
}

static void *serve(void *argument) {
  et_worker *self = argument;
  et_pool *pool = self->pool;
  uint32_t seen = 0;
  pthread_setspecific(key, self);
  restrict_to_cores(pool);
  leave_creators_core(pool);
  finish(pool);
  for (;;) {
    while (unchanged(&pool->generation, seen, pool->spin_ns)) {
      atomic_fetch_add(&pool->sleeping, 1);
      syscall(SYS_FUTEX, &pool->generation, FUTEX_WAIT_PRIVATE, seen, NULL);
      atomic_fetch_sub(&pool->sleeping, 1);
    }
    if (atomic_load(&pool->stop)) return NULL;
    seen++;
    if (work(pool, self->index) != 0) atomic_store(&pool->failed, 1);
    finish(pool);
  }
}

static void next_generation(et_pool *pool) {
  atomic_fetch_add(&pool->generation, 1);
  if (atomic_load(&pool->sleeping) != 0) syscall(SYS_FUTEX, &pool->generation, FUTEX_WAKE_PRIVATE, MAX_THREADS);
}

static void wait_for_workers(et_pool *pool) {
  uint32_t left;
  while ((left = atomic_load_explicit(&pool->pending, memory_order_acquire)) != 0) {
    if (!unchanged(&pool->pending, left, pool->spin_ns)) continue;
    atomic_store(&pool->caller_sleeps, 1);
    left = atomic_load(&pool->pending);
    if (left != 0) syscall(SYS_FUTEX, &pool->pending, FUTEX_WAIT_PRIVATE, left, NULL);
    atomic_store(&pool->caller_sleeps, 0);
  }
}

static int parallel_launch(et_task task, void *data, int num_task) {
  et_worker *self = pthread_getspecific(key);
  et_pool *pool = self->pool;
  if (self->index != 0 || pool->busy || pool->threads == 1) {
    et_group alone = {NULL, num_task > 0 ? num_task : 1};
    for (int i = 0; i < alone.num_task; i++)
      if (task(i, &alone, data) != 0) return -1;
    return 0;
  }
  pool->busy = 1;
  pool->task = task;
  pool->data = data;
  pool->group.num_task = num_task > 0 ? num_task : pool->threads;
  atomic_store(&pool->failed, 0);
  atomic_store(&pool->pending, (uint32_t)pool->threads - 1);
  next_generation(pool);
  int result = work(pool, 0);
  wait_for_workers(pool);
  pool->busy = 0;
  return result != 0 || atomic_load(&pool->failed) ? -1 : 0;
}

static size_t rounded(uint64_t size) {
  return ((size_t)size + EDGETUNE_ALIGNMENT - 1) / EDGETUNE_ALIGNMENT * EDGETUNE_ALIGNMENT;
}

/* Kernels free in the reverse order of allocating: a stack for each thread. */
static void *alloc_workspace(int device_type, int device, uint64_t size, int code, int bits) {
  (void)device_type, (void)device, (void)code, (void)bits;
  et_worker *self = pthread_getspecific(key);
  size_t start = self->used;
  if (rounded(size) > self->pool->workspace_bytes - start) return NULL;
  self->used = start + rounded(size);
  return self->workspace + start;
}

static int free_workspace(int device_type, int device, void *memory) {
  (void)device_type, (void)device;
  et_worker *self = pthread_getspecific(key);
  self->used = (size_t)((unsigned char *)memory - self->workspace);
  return 0;
}

/* The kernels' objects hold these variables too, as weak ones that a loader fills. */
int (*__TVMBackendParallelLaunch)(et_task, void *, int) = parallel_launch;
void *(*__TVMBackendAllocWorkspace)(int, int, uint64_t, int, int) = alloc_workspace;
int (*__TVMBackendFreeWorkspace)(int, int, void *) = free_workspace;

void TVMFFIErrorSetRaisedFromCStrParts(const char *kind, const char **parts, int32_t num_parts) {
  (void)kind;
  et_worker *self = pthread_getspecific(key);
  const char *message[16];
  int count = num_parts < 15 ? num_parts : 15;
  for (int i = 0; i < count; i++) message[i] = parts[i];
  message[count] = NULL;
  /* Of several threads that fail at once only the caller's speaks. */
  if (self != NULL && self->index == 0) et_fail(self->pool->error, EDGETUNE_ERROR_KERNEL, message);
}

/* Start the threads of this process, and wait until they are where they run; where it gives fewer, the others take
 * their tasks. The number that it gives. */
static int start_threads(et_pool *pool) {
  pool->process = getpid();
  pool->started = 1;
  pool->creators_core = this_core();
  for (int i = 1; i < pool->threads; i++) {
    atomic_fetch_add(&pool->pending, 1);
    if (pthread_create(&pool->workers[i].thread, NULL, serve, &pool->workers[i]) != 0) {
      atomic_fetch_sub(&pool->pending, 1);
      break;
    }
    pool->started = i + 1;
  }
  wait_for_workers(pool);
  return pool->started;
}

/* In the child of a fork. Waiting for threads that are not there would never end. */
static void start_again(et_pool *pool) {
  pool->busy = 0;
  atomic_store(&pool->generation, 0);
  atomic_store(&pool->sleeping, 0);
  atomic_store(&pool->pending, 0);
  atomic_store(&pool->caller_sleeps, 0);
  pool->threads = start_threads(pool);
}

void *et_pool_enter(et_pool *pool, edgetune_error *error) {
  void *before = pthread_getspecific(key);
  if (pool->threads > 1 && pool->process != getpid()) start_again(pool);
  pool->error = error;
  pthread_setspecific(key, &pool->workers[0]);
  return before;
}

void et_pool_leave(void *before) { pthread_setspecific(key, before); }

void et_pool_free(et_pool *pool) {
  if (pool == NULL) return;
  atomic_store(&pool->stop, 1);
  if (pool->started > 1 && pool->process == getpid()) {
    next_generation(pool);
    for (int i = 1; i < pool->started; i++) pthread_join(pool->workers[i].thread, NULL);
  }
  free(pool->workspaces);
  free(pool->workers);
  free((void *)pool->cores);
  free(pool);
}

static int copy_cores(et_pool *pool, const int32_t *cores, int count) {
  if (count == 0) return 1;
  int32_t *copy = calloc((size_t)count, sizeof *copy);
  if (copy == NULL) return 0;
  memcpy(copy, cores, (size_t)count * sizeof *copy);
  pool->cores = copy;
  pool->num_cores = count;
  return 1;
}

et_pool *et_pool_create(int threads, int spin_us, size_t workspace_bytes, const int32_t *cores, int num_cores,
                        edgetune_error *error) {
  char number[24];
  if (threads < 1 || threads > MAX_THREADS) {
    ET_FAIL(error, EDGETUNE_ERROR_ARGUMENT, "the number of threads is not between 1 and 256; correct options.threads");
    return NULL;
  }
  for (int i = 0; i < num_cores; i++)
    if (cores[i] < 0 || cores[i] >= MAX_CORES) {
      ET_FAIL(error, EDGETUNE_ERROR_ARGUMENT, "a core is not between 0 and 4095; correct options.cores");
      return NULL;
    }
  pthread_once(&key_once, make_key);
  void *memory = NULL;
  if (posix_memalign(&memory, 64, sizeof(et_pool)) != 0) memory = NULL;
  et_pool *pool = memory;
  if (pool != NULL) {
    memset(pool, 0, sizeof *pool);
    pool->threads = threads;
    pool->spin_ns = spin_us < 0 ? 0 : (uint64_t)spin_us * 1000;
    pool->workspace_bytes = rounded(workspace_bytes);
    pool->workers = calloc((size_t)threads, sizeof *pool->workers);
    size_t all = pool->workspace_bytes * (size_t)threads;
    if (all != 0 && posix_memalign(&pool->workspaces, EDGETUNE_ALIGNMENT, all) != 0) pool->workspaces = NULL;
    pool->started = 1;
    if (pool->workers == NULL || (all != 0 && pool->workspaces == NULL) || !copy_cores(pool, cores, num_cores)) {
      free(pool->workers), free(pool->workspaces), free(pool);
      pool = NULL;
    }
  }
  if (pool == NULL) {
    ET_FAIL(error, EDGETUNE_ERROR_MEMORY, "no memory for the threads of an instance; use fewer threads");
    return NULL;
  }
  for (int i = 0; i < threads; i++) {
    et_worker *worker = &pool->workers[i];
    worker->pool = pool;
    worker->index = i;
    worker->workspace = (unsigned char *)pool->workspaces + (size_t)i * pool->workspace_bytes;
  }
  if (start_threads(pool) < threads) {
    ET_FAIL(error, EDGETUNE_ERROR_THREADS, "the system gives no more than ",
            et_decimal((uint64_t)pool->started, number), " threads; use fewer");
    et_pool_free(pool);
    return NULL;
  }
  return pool;
}

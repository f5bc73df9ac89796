/* A model that needs TVM's virtual machine behind the C API: its program is one step that calls the machine.
 *
 * Takes the place of pool.c: what an instance has in place of threads of its own is a machine, and TVM's threads.
 * Linked into the very library that TVM loads as the model's code, against TVM's runtime libraries beside it. The
 * structures are those of tvm/ffi/c_api.h in the pinned version, which et_pool_create compares.
 */
#include "vm.h"

/* libc and libtvm_ffi */
typedef struct et_library_info {
  const char *path;
  void *base;
  const char *symbol;
  void *address;
} et_library_info;
int dladdr(const void *address, et_library_info *info);
void *dlopen(const char *path, int flags);
int pthread_mutex_lock(void *mutex);
int pthread_mutex_unlock(void *mutex);
int sched_getaffinity(int thread, size_t size, void *mask);
void TVMFFIGetVersion(uint32_t version[3]);
int TVMFFIObjectDecRef(void *object);
int TVMFFIFunctionGetGlobal(const void *name, void **function);
int TVMFFIFunctionCall(void *function, et_any *arguments, int32_t count, et_any *result);
void TVMFFIErrorMoveFromRaised(void **error);
typedef struct et_managed {
  et_tensor tensor;
  void *context;
  void (*free)(struct et_managed *self);
} et_managed;
int TVMFFITensorFromDLPack(et_managed *from, int32_t alignment, int32_t contiguous, void **tensor);

enum { TYPE_NONE = 0, TYPE_INT = 1, TYPE_TEXT = 8, TYPE_OBJECT = 64, TYPE_TENSOR = 70, TYPE_ARRAY = 71 };
enum { OBJECT_HEADER_BYTES = 24, CLOCK_MONOTONIC_ = 1, MAX_CORES = 4096 };
enum { RTLD_NOW_ = 2, RTLD_NOLOAD_ = 4, RTLD_NODELETE_ = 0x1000 }; /* glibc's */
enum { CPU = 1, POOLED_ALLOCATOR = 2, SHARE_ALL_CORES = -3 }; /* of TVM's machine and threads */
#define BOUND "edgetune_bound"

typedef struct et_bytes {
  const char *data;
  size_t size;
} et_bytes;

struct et_pool {
  void *machine, *function; /* function: with inputs and weights bound to `bound` */
  const void **bound;
  int threads;
  int32_t *cores;
  int num_cores;
  uint32_t serial; /* of the pools, from 1 */
  edgetune_error *error;
};

static unsigned long lock[16]; /* a pthread_mutex_t, of at most 48 bytes */
static void *module;           /* the library as TVM has it: loaded twice, it would lose its state */
static int module_users;
static int keys_once;
/* Of a thread: the pool that runs; the serial that its threads are for; the process that has them. */
static unsigned current, configured, process;
static _Atomic uint32_t serials;

static void make_keys(void) {
  pthread_key_create(&current, NULL), pthread_key_create(&configured, NULL), pthread_key_create(&process, NULL);
}

uint64_t et_now_ns(void) {
  struct et_timespec now;
  clock_gettime(CLOCK_MONOTONIC_, &now);
  return (uint64_t)now.seconds * 1000000000u + (uint64_t)now.nanoseconds;
}

static et_any integer(int64_t value) { return (et_any){TYPE_INT, 0, {.integer = value}}; }
static et_any text(const char *value) { return (et_any){TYPE_TEXT, 0, {.pointer = (void *)value}}; }
static et_any object(void *value) { return (et_any){((const int32_t *)value)[2], 0, {.pointer = value}}; }

static void drop(et_any *value) {
  if (value->type_index >= TYPE_OBJECT) TVMFFIObjectDecRef(value->value.pointer);
  *value = (et_any){TYPE_NONE, 0, {0}};
}

static void drop_object(void *value) {
  if (value != NULL) TVMFFIObjectDecRef(value);
}

/* What TVM said, its first line; 0 for callers that return it. */
static int failed(edgetune_error *error) {
  char line[160];
  void *raised = NULL;
  size_t size = 0;
  TVMFFIErrorMoveFromRaised(&raised);
  if (raised != NULL) {
    const et_bytes *message = (const et_bytes *)((const char *)raised + OBJECT_HEADER_BYTES) + 1;
    while (size < sizeof line - 1 && size < message->size && message->data[size] != '\n') size++;
    memcpy(line, message->data, size);
    drop_object(raised);
  }
  line[size] = 0;
  ET_FAIL(error, EDGETUNE_ERROR_KERNEL, size ? line : "TVM's runtime gave no reason");
  return 0;
}

static int call(void *function, et_any *arguments, int count, et_any *result, edgetune_error *error) {
  *result = (et_any){TYPE_NONE, 0, {0}};
  return TVMFFIFunctionCall(function, arguments, count, result) == 0 ? 1 : failed(error);
}

static int call_global(const char *name, et_any *arguments, int count, et_any *result, edgetune_error *error) {
  et_bytes bytes = {name, 0};
  void *function = NULL;
  while (name[bytes.size]) bytes.size++;
  if (TVMFFIFunctionGetGlobal(&bytes, &function) != 0) return failed(error);
  if (function == NULL) {
    ET_FAIL(error, EDGETUNE_ERROR_FILE, "TVM's runtime has no function ", name,
            "; put the runtime libraries of this bundle beside it");
    return 0;
  }
  int done = call(function, arguments, count, result, error);
  drop_object(function);
  return done;
}

/* A function of a module; NULL, with the error, where there is none. */
static void *method(void *of, const char *name, edgetune_error *error) {
  et_any arguments[] = {object(of), text(name), integer(1)}, found;
  if (!call_global("ffi.ModuleGetFunction", arguments, 3, &found, error)) return NULL;
  if (found.type_index >= TYPE_OBJECT) return found.value.pointer;
  ET_FAIL(error, EDGETUNE_ERROR_FILE, "the library has no function ", name, "; build the bundle again");
  return NULL;
}

static int call_method(void *of, const char *name, et_any *arguments, int count, et_any *result,
                       edgetune_error *error) {
  void *function = method(of, name, error);
  int done = function != NULL && call(function, arguments, count, result, error);
  drop_object(function);
  return done;
}

/* ---- a machine for each instance ---- */

static int check_version(edgetune_error *error) {
  uint32_t found[3];
  char is[3][24], wanted[3][24];
  TVMFFIGetVersion(found);
  if (found[0] == et_vm_ffi_version[0] && found[1] == et_vm_ffi_version[1] && found[2] == et_vm_ffi_version[2]) return 1;
  for (int i = 0; i < 3; i++) et_decimal(found[i], is[i]), et_decimal(et_vm_ffi_version[i], wanted[i]);
  ET_FAIL(error, EDGETUNE_ERROR_FILE, "libtvm_ffi in this process is of version ", is[0], ".", is[1], ".", is[2],
          ", the model wants ", wanted[0], ".", wanted[1], ".", wanted[2], "; load the one beside the model");
  return 0;
}

static int acquire_module(edgetune_error *error) {
  int done = 1;
  pthread_mutex_lock(lock);
  if (module == NULL) {
    et_library_info self;
    et_any path = {TYPE_NONE, 0, {0}}, loaded;
    if (dladdr(&module, &self) != 0) {
      path = text(self.path);
      /* TVM's threads outlive instances: neither its libraries nor this one may be unloaded. */
      dlopen(self.path, RTLD_NOW_ | RTLD_NOLOAD_ | RTLD_NODELETE_);
    }
    done = call_global("ffi.ModuleLoadFromFile", &path, 1, &loaded, error);
    if (done) module = loaded.value.pointer;
  }
  if (done) module_users++;
  pthread_mutex_unlock(lock);
  return done;
}

static void release_module(void) {
  pthread_mutex_lock(lock);
  if (--module_users == 0) drop_object(module), module = NULL;
  pthread_mutex_unlock(lock);
}

static int start_machine(et_pool *pool, edgetune_error *error) {
  et_any machine, nothing, arguments[] = {integer(CPU), integer(0), integer(POOLED_ALLOCATOR)};
  if (!acquire_module(error)) return 0;
  if (!call_method(module, "vm_load_executable", NULL, 0, &machine, error)) return release_module(), 0;
  pool->machine = machine.value.pointer;
  if (call_method(pool->machine, "vm_initialization", arguments, 3, &nothing, error)) return 1;
  drop_object(pool->machine);
  release_module();
  return 0;
}

et_pool *et_pool_create(int threads, int spin_us, size_t workspace_bytes, const int32_t *cores, int num_cores,
                        edgetune_error *error) {
  (void)spin_us, (void)workspace_bytes;
  if (threads < 1 || threads > 256) {
    ET_FAIL(error, EDGETUNE_ERROR_ARGUMENT, "the number of threads is not between 1 and 256; correct options.threads");
    return NULL;
  }
  for (int i = 0; i < num_cores; i++)
    if (cores[i] < 0 || cores[i] >= MAX_CORES) {
      ET_FAIL(error, EDGETUNE_ERROR_ARGUMENT, "a core is not between 0 and 4095; correct options.cores");
      return NULL;
    }
  if (!check_version(error)) return NULL;
  pthread_once(&keys_once, make_keys);
  et_pool *pool = calloc(1, sizeof *pool);
  int32_t *copy = calloc((size_t)num_cores + 1, sizeof *copy);
  if (pool == NULL || copy == NULL || !start_machine(pool, error)) {
    if (pool == NULL || copy == NULL) ET_FAIL(error, EDGETUNE_ERROR_MEMORY, "no memory for an instance; free some");
    free(copy), free(pool);
    return NULL;
  }
  if (num_cores != 0) memcpy(copy, cores, (size_t)num_cores * sizeof *copy);
  pool->threads = threads;
  pool->cores = copy;
  pool->num_cores = num_cores;
  pool->serial = atomic_fetch_add(&serials, 1) + 1;
  return pool;
}

void et_pool_free(et_pool *pool) {
  if (pool == NULL) return;
  drop_object(pool->function);
  drop_object(pool->machine);
  release_module();
  free(pool->bound), free(pool->cores), free(pool);
}

/* ---- threads: TVM's pool belongs to the calling thread, and is as large as it is first told ---- */

static int use_cores(int threads, const int32_t *cores, int count, edgetune_error *error) {
  char (*names)[24] = calloc((size_t)count + 1, sizeof *names);
  et_any *items = calloc((size_t)count + 1, sizeof *items), list, nothing;
  int done = 0;
  if (names != NULL && items != NULL) {
    for (int i = 0; i < count; i++) items[i] = text(et_decimal((uint64_t)cores[i], names[i]));
    done = call_global("ffi.Array", items, count, &list, error);
  }
  if (done) {
    et_any arguments[] = {integer(SHARE_ALL_CORES), integer(threads), list};
    done = call_global("runtime.config_threadpool", arguments, 3, &nothing, error);
    drop(&list);
  }
  free(names), free(items);
  return done;
}

static int use_threads(const et_pool *pool, edgetune_error *error) {
  uint32_t before = (uint32_t)(uintptr_t)pthread_getspecific(configured);
  if (before != 0 && (int)(intptr_t)pthread_getspecific(process) != getpid()) {
    /* TVM would wait for threads that only the parent has. */
    ET_FAIL(error, EDGETUNE_ERROR_THREADS, "this process is the fork of one that ran a model, without its threads; "
            "run models in a new thread, or only after the fork");
    return 0;
  }
  if (before == pool->serial) return 1;
  int32_t all[MAX_CORES];
  int count = 0;
  unsigned long mask[MAX_CORES / (8 * sizeof(unsigned long))] = {0};
  sched_getaffinity(0, sizeof mask, mask);
  for (int32_t i = 0; i < MAX_CORES; i++)
    if (mask[(size_t)i / (8 * sizeof mask[0])] >> (size_t)i % (8 * sizeof mask[0]) & 1) all[count++] = i;
  int threads = pool->threads < count ? pool->threads : count;
  if (before == 0 && !use_cores(threads, all, count, error)) return 0;
  const int32_t *cores = pool->num_cores ? pool->cores : all;
  if (!use_cores(threads, cores, pool->num_cores ? pool->num_cores : count, error)) return 0;
  pthread_setspecific(configured, (void *)(uintptr_t)pool->serial);
  pthread_setspecific(process, (void *)(intptr_t)getpid());
  return 1;
}

void *et_pool_enter(et_pool *pool, edgetune_error *error) {
  void *before = pthread_getspecific(current);
  pool->error = error;
  pthread_setspecific(current, pool);
  return before;
}

void et_pool_leave(void *before) { pthread_setspecific(current, before); }

/* ---- the step ---- */

static uint64_t tensor_bytes(const et_tensor *tensor) {
  uint64_t size = tensor->dtype_bits / 8u;
  for (int32_t i = 0; i < tensor->rank; i++) size *= (uint64_t)tensor->shape[i];
  return size;
}

static void free_managed(et_managed *self) { free(self); }

static void *wrap(const et_vm_tensor *as, void *data) {
  et_managed *managed = calloc(1, sizeof *managed);
  void *tensor = NULL;
  if (managed == NULL) return NULL;
  managed->tensor = (et_tensor){.data = data, .device_type = CPU, .rank = as->rank, .dtype_code = as->code,
                                .dtype_bits = as->bits, .dtype_lanes = 1, .shape = (int64_t *)as->shape};
  managed->free = free_managed;
  if (TVMFFITensorFromDLPack(managed, 0, 0, &tensor) != 0) free(managed);
  return tensor;
}

static void *data_of(const et_any *argument) { return ((const et_tensor *)argument->value.pointer)->data; }

/* Bind the function to its inputs and weights, unless it is to the same memory already. */
static int bind(et_pool *pool, const et_vm_function *function, const et_any *places) {
  int count = function->num_arguments, same = pool->function != NULL, done = 1;
  for (int i = 0; i < count && same; i++) same = pool->bound[i] == data_of(&places[i]);
  if (same) return 1;
  drop_object(pool->function);
  pool->function = NULL;
  if (pool->bound == NULL) pool->bound = calloc((size_t)count + 1, sizeof *pool->bound);
  et_any *arguments = calloc((size_t)count + 3, sizeof *arguments), nothing;
  if (pool->bound != NULL && arguments != NULL) {
    arguments[0] = text(function->name), arguments[1] = text(BOUND), arguments[2] = integer(1);
    for (int i = 0; i < count && done; i++) {
      void *tensor = wrap(&function->tensors[i], data_of(&places[i]));
      done = tensor != NULL;
      if (done) arguments[3 + i] = object(tensor), pool->bound[i] = data_of(&places[i]);
    }
    done = done && call_method(pool->machine, "save_function", arguments, 3 + count, &nothing, pool->error);
    if (done) pool->function = method(pool->machine, BOUND, pool->error);
    for (int i = 0; i < count; i++) drop(&arguments[3 + i]);
  }
  free(arguments);
  return pool->function != NULL;
}

static int copy_result(const et_any *result, const et_any *place, const et_vm_tensor *as, edgetune_error *error) {
  const et_tensor *from = (const et_tensor *)((const char *)result->value.pointer + OBJECT_HEADER_BYTES);
  et_tensor wanted = {.rank = as->rank, .shape = (int64_t *)as->shape, .dtype_bits = as->bits};
  if (result->type_index != TYPE_TENSOR || tensor_bytes(from) != tensor_bytes(&wanted)) {
    ET_FAIL(error, EDGETUNE_ERROR_KERNEL, "an output has another size than the model says");
    return 0;
  }
  memcpy(data_of(place), (const char *)from->data + from->byte_offset, (size_t)tensor_bytes(from));
  return 1;
}

int et_vm_run(const et_vm_function *function, const et_any *places) {
  et_pool *pool = pthread_getspecific(current);
  const et_any *outputs = places + function->num_arguments;
  const et_vm_tensor *as = function->tensors + function->num_arguments;
  et_any result;
  if (!use_threads(pool, pool->error) || !bind(pool, function, places)) return -1;
  if (!call(pool->function, NULL, 0, &result, pool->error)) return -1;
  const et_any *items = &result;
  int64_t count = 1;
  if (result.type_index == TYPE_ARRAY) {
    const char *cell = (const char *)result.value.pointer + OBJECT_HEADER_BYTES;
    memcpy(&items, cell, sizeof items);
    memcpy(&count, cell + sizeof items, sizeof count);
  }
  int done = count == function->num_outputs;
  for (int i = 0; i < function->num_outputs && done; i++) done = copy_result(&items[i], &outputs[i], &as[i], pool->error);
  drop(&result);
  return done ? 0 : -1;
}

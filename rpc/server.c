/* TVM's RPC protocol without TVM: sessions on devices that TVM's runtime is not built for (armv7, riscv64).
 *
 * Compiled into the runner (-DEDGETUNE_OWN_RPC) with pool.c and error.c of edgetune/standalone/c, whose threads run
 * the kernels. It answers what edgetune asks a device for: files are stored and removed, libraries loaded, their
 * functions called with tensors and numbers, and timed as TVM's time evaluator does. There is no virtual machine:
 * bundles have to be standalone libraries.
 *
 * The protocol, version 0.8.0, is that of src/runtime/rpc/minrpc/rpc_reference.h in TVM 0.27: packets of a length,
 * a code and a sequence of values, each with the number of its type in tvm/ffi/c_api.h. All numbers are little
 * endian, pointers 64 bits wide.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "edgetune.h"

/* Of pool.c; its header declares the C library itself. */
typedef struct et_pool et_pool;
et_pool* edgetune_private_pool_create(int threads, int spin_us, size_t workspace_bytes, const int32_t* cores,
                                      int num_cores, edgetune_error* error);
void edgetune_private_pool_free(et_pool* pool);
void* edgetune_private_pool_enter(et_pool* pool, edgetune_error* error);
extern int (*__TVMBackendParallelLaunch)(int (*)(int, void*, void*), void*, int);
extern void* (*__TVMBackendAllocWorkspace)(int, int, uint64_t, int, int);
extern int (*__TVMBackendFreeWorkspace)(int, int, void*);

enum { SPIN_US = 200, WORKSPACE_BYTES = 32 << 20, MOST_VALUES = 64, MOST_DIMENSIONS = 16 };
enum Code {
  SHUTDOWN = 1, INIT, CALL, RETURN, EXCEPTION, COPY_FROM, COPY_TO, COPY_ACK, GET_GLOBAL, FREE_HANDLE, SET_DEVICE,
  GET_ATTRIBUTE, ALLOC, FREE, SYNC, COPY_AMONG, ALLOC_SCOPED
};
enum Type {
  NONE, INT, BOOL, FLOAT, OPAQUE, DTYPE, DEVICE, TENSOR, RAW_TEXT, RAW_BYTES, SMALL_TEXT = 11, SMALL_BYTES = 12,
  OBJECT = 64, TEXT = 65, BYTES = 66, FUNCTION = 68, MODULE = 73
};

typedef struct {
  int32_t type;
  uint32_t padding;
  union {
    int64_t integer;
    void* pointer;
  } value;
} Any; /* TVMFFIAny */

typedef struct {
  void* data;
  int32_t device[2];
  int32_t rank;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
} Tensor; /* DLTensor */

typedef struct {
  Any any;
  const char* text; /* of strings and bytes; not ended by a zero */
  uint64_t length;
  Tensor tensor;
  int64_t shape[MOST_DIMENSIONS];
} Value;

typedef int (*Kernel)(void*, Any*, int32_t, Any*);

/* What the client has a handle of. */
typedef struct Object {
  enum { BUILT_IN, LIBRARY, KERNEL, EVALUATOR } kind;
  const char* name;
  int (*body)(Value*, int);
  struct Object* library; /* that a kernel is in */
  void* loaded;
  int users;
  Kernel kernel;
  int64_t number, repeats, least_ms, most_zeros;
} Object;

static int connection;
static const char* files;
static int num_threads;
static et_pool* pool;
static edgetune_error error; /* what failed last */

static struct {
  uint8_t* data;
  size_t size, at, room;
} request, reply;

static int fail(const char* what, const char* why) {
  snprintf(error.message, sizeof error.message, "%.100s: %.140s", what, why);
  return -1;
}

/* What kernels and adapters call when they refuse their arguments; pool.c has the other form of it. */
EDGETUNE_API void TVMFFIErrorSetRaisedFromCStr(const char* kind, const char* message) {
  (void)kind;
  snprintf(error.message, sizeof error.message, "%s", message);
}

/* ---- bytes --------------------------------------------------------------------------------------- */

static void* grown(void* data, size_t size) {
  void* bigger = realloc(data, size);
  if (bigger != NULL) return bigger;
  fprintf(stderr, "runner: no memory for a message of %zu bytes\n", size);
  _exit(5);
}

static void receive(void* data, size_t size) {
  for (size_t done = 0; done < size;) {
    ssize_t count = read(connection, (char*)data + done, size - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) _exit(0); /* the client is gone */
    done += (size_t)count;
  }
}

static void send_all(const void* data, size_t size) {
  for (size_t done = 0; done < size;) {
    ssize_t count = write(connection, (const char*)data + done, size - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) _exit(0);
    done += (size_t)count;
  }
}

static const void* take(uint64_t size) {
  if (size > request.size - request.at) {
    fprintf(stderr, "runner: a message of the client ends too early\n");
    _exit(5);
  }
  const void* at = request.data + request.at;
  request.at += (size_t)size;
  return at;
}

#define TAKE(variable) memcpy(&(variable), take(sizeof(variable)), sizeof(variable))

static void put(const void* data, size_t size) {
  if (reply.size + size > reply.room) {
    reply.room = 2 * (reply.size + size);
    reply.data = grown(reply.data, reply.room);
  }
  if (size != 0) memcpy(reply.data + reply.size, data, size);
  reply.size += size;
}

static void put_int32(int32_t number) { put(&number, sizeof number); }
static void put_int64(int64_t number) { put(&number, sizeof number); }

/* ---- values -------------------------------------------------------------------------------------- */

static void begin(enum Code code, int32_t values) {
  reply.size = 0;
  put_int64(0); /* the length, set when it is known */
  put_int32(code);
  put_int32(values);
}

static void end(void) {
  uint64_t length = reply.size - sizeof length;
  memcpy(reply.data, &length, sizeof length);
  send_all(reply.data, reply.size);
}

static void put_number(enum Type type, int64_t number) {
  put_int32(type);
  put_int64(number);
}

static void put_bytes(enum Type type, const void* data, size_t size) {
  put_int32(type);
  put_int64((int64_t)size);
  put(data, size);
}

static void answer_nothing(void) {
  begin(RETURN, 1);
  put_int32(NONE);
  end();
}

static void answer_exception(void) {
  begin(EXCEPTION, 1);
  put_bytes(RAW_TEXT, error.message, strlen(error.message));
  end();
}

/* What a function returns: the type of the value, then the value. */
static int give(enum Type type, enum Type as, int64_t value) {
  begin(RETURN, 2);
  put_number(INT, type);
  if (as == NONE) {
    put_int32(NONE);
  } else {
    put_number(as, value);
  }
  end();
  return 0;
}

static int give_nothing(void) { return give(NONE, NONE, 0); }
static int give_int(int64_t value) { return give(INT, INT, value); }
static int give_handle(enum Type type, Object* object) { return give(type, OPAQUE, (int64_t)(uintptr_t)object); }

static void take_tensor(Value* into) {
  uint64_t data;
  Tensor* tensor = &into->tensor;
  TAKE(data);
  TAKE(tensor->device);
  TAKE(tensor->rank);
  TAKE(tensor->code), TAKE(tensor->bits), TAKE(tensor->lanes);
  if (tensor->rank < 0 || tensor->rank > MOST_DIMENSIONS) {
    fprintf(stderr, "runner: a tensor of %d dimensions\n", tensor->rank);
    _exit(5);
  }
  size_t size = sizeof(int64_t) * (size_t)tensor->rank;
  memcpy(into->shape, take(size), size);
  TAKE(tensor->byte_offset);
  tensor->data = (void*)(uintptr_t)data;
  tensor->shape = into->shape;
  tensor->strides = NULL;
  into->any.value.pointer = tensor;
}

static void take_text(Value* into) {
  TAKE(into->length);
  into->text = take(into->length);
}

static void take_value(Value* into) {
  uint32_t meant;
  uint64_t wide;
  memset(into, 0, sizeof *into);
  TAKE(into->any.type);
  switch (into->any.type) {
    case NONE:
      break;
    case INT: case BOOL: case FLOAT: case DTYPE: case DEVICE:
      TAKE(into->any.value.integer);
      break;
    case OPAQUE: case FUNCTION: case MODULE:
      TAKE(wide);
      into->any.value.pointer = (void*)(uintptr_t)wide;
      break;
    case TENSOR:
      take_tensor(into);
      break;
    case RAW_TEXT: case RAW_BYTES:
      take_text(into);
      break;
    default:
      TAKE(meant);
      if (meant != TEXT && meant != BYTES) {
        fprintf(stderr, "runner: a value of type %u is not known\n", meant);
        _exit(5);
      }
      into->any.type = (int32_t)meant;
      take_text(into);
  }
}

static int take_values(Value* values) {
  int32_t count;
  TAKE(count);
  if (count < 0 || count > MOST_VALUES) {
    fprintf(stderr, "runner: a call with %d values\n", count);
    _exit(5);
  }
  for (int i = 0; i < count; ++i) take_value(&values[i]);
  return count;
}

static int is_text(const Value* value) { return value->text != NULL; }

static void copy_text(const Value* value, char* text, size_t size) {
  snprintf(text, size, "%.*s", (int)(value->length < INT_MAX ? value->length : INT_MAX), value->text);
}

/* ---- the functions that a client finds by name ----------------------------------------------------- */

/* A file of the session: in its folder, whatever folders the name has. */
static int path_of(Value* values, int count, char* path, size_t size) {
  char name[PATH_MAX];
  if (count < 1 || !is_text(&values[0])) return fail("a file", "its name is needed");
  copy_text(&values[0], name, sizeof name);
  const char* slash = strrchr(name, '/');
  int written = snprintf(path, size, "%s/%s", files, slash == NULL ? name : slash + 1);
  return written > 0 && (size_t)written < size ? 0 : fail(name, "the name is too long");
}

static int upload(Value* values, int count) {
  char path[PATH_MAX];
  if (path_of(values, count, path, sizeof path) != 0) return -1;
  if (count < 2 || !is_text(&values[1])) return fail(path, "upload wants bytes");
  FILE* file = fopen(path, "wb");
  int complete = file != NULL && fwrite(values[1].text, 1, (size_t)values[1].length, file) == values[1].length;
  int why = errno;
  if (file != NULL && fclose(file) != 0 && complete) {
    complete = 0;
    why = errno;
  }
  if (complete) return give_nothing();
  unlink(path);
  return fail("the file cannot be stored", strerror(why));
}

static int remove_file(Value* values, int count) {
  char path[PATH_MAX];
  if (path_of(values, count, path, sizeof path) != 0) return -1;
  unlink(path);
  return give_nothing();
}

static Object* new_object(int kind) {
  Object* object = calloc(1, sizeof *object);
  if (object == NULL) _exit(5);
  object->kind = kind;
  object->users = 1;
  return object;
}

static void fill_in(void* library, const char* name, const void* function) {
  void* variable = dlsym(library, name);
  if (variable != NULL) memcpy(variable, function, sizeof(void*));
}

static int load_library(Value* values, int count) {
  char path[PATH_MAX];
  if (path_of(values, count, path, sizeof path) != 0) return -1;
  void* loaded = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (loaded == NULL) return fail("the library cannot be loaded", dlerror());
  fill_in(loaded, "__TVMBackendParallelLaunch", &__TVMBackendParallelLaunch);
  fill_in(loaded, "__TVMBackendAllocWorkspace", &__TVMBackendAllocWorkspace);
  fill_in(loaded, "__TVMBackendFreeWorkspace", &__TVMBackendFreeWorkspace);
  Object* library = new_object(LIBRARY);
  library->loaded = loaded;
  return give_handle(MODULE, library);
}

static Object* kernel_of(const Value* library, const Value* name) {
  char symbol[1024] = "__tvm_ffi_";
  Object* object = library->any.value.pointer;
  if (library->any.type != MODULE || object == NULL || !is_text(name)) return NULL;
  copy_text(name, symbol + strlen(symbol), sizeof symbol - strlen(symbol));
  void* found = dlsym(object->loaded, symbol);
  if (found == NULL) return NULL;
  Object* kernel = new_object(KERNEL);
  memcpy(&kernel->kernel, &found, sizeof found);
  kernel->library = object;
  object->users++;
  return kernel;
}

static int get_function(Value* values, int count) {
  Object* kernel = count >= 2 ? kernel_of(&values[0], &values[1]) : NULL;
  return kernel == NULL ? give_nothing() : give_handle(FUNCTION, kernel);
}

/* (library, name, device type, device, number, repeat, min_repeat_ms, limit_zero_time_iterations, ...) */
static int time_evaluator(Value* values, int count) {
  Object* kernel = count >= 8 ? kernel_of(&values[0], &values[1]) : NULL;
  if (kernel == NULL) return fail("the library", "it has no such function to time");
  kernel->kind = EVALUATOR;
  kernel->number = values[4].any.value.integer;
  kernel->repeats = values[5].any.value.integer;
  kernel->least_ms = values[6].any.value.integer;
  kernel->most_zeros = values[7].any.value.integer;
  return give_handle(FUNCTION, kernel);
}

static int start_threads(int count) {
  error.message[0] = 0;
  et_pool* fresh = edgetune_private_pool_create(count, SPIN_US, WORKSPACE_BYTES, NULL, 0, &error);
  if (fresh == NULL) return -1;
  edgetune_private_pool_enter(fresh, &error);
  if (pool != NULL) edgetune_private_pool_free(pool);
  pool = fresh;
  num_threads = count;
  return 0;
}

static int count_threads(Value* values, int count) {
  (void)values, (void)count;
  return give_int(num_threads);
}

/* (mode, threads): as many, on whatever cores the system chooses. */
static int set_threads(Value* values, int count) {
  int wanted = count >= 2 ? (int)values[1].any.value.integer : 0;
  return wanted == num_threads || start_threads(wanted) == 0 ? give_nothing() : -1;
}

static int peak_memory_bytes(Value* values, int count) {
  struct rusage usage;
  (void)values, (void)count;
  getrusage(RUSAGE_SELF, &usage);
  return give_int((int64_t)usage.ru_maxrss * 1024);
}

static Object functions[] = {
    {.name = "tvm.rpc.server.upload", .body = upload},
    {.name = "tvm.rpc.server.remove", .body = remove_file},
    {.name = "tvm.rpc.server.load_module", .body = load_library},
    {.name = "tvm.rpc.server.ModuleGetFunction", .body = get_function},
    {.name = "runtime.RPCTimeEvaluator", .body = time_evaluator},
    {.name = "runtime.NumThreads", .body = count_threads},
    {.name = "runtime.config_threadpool", .body = set_threads},
    {.name = "edgetune.peak_memory_bytes", .body = peak_memory_bytes},
};

static Object* global_function(const Value* name) {
  char text[256];
  copy_text(name, text, sizeof text);
  for (size_t i = 0; i < sizeof functions / sizeof *functions; ++i) {
    if (strcmp(functions[i].name, text) == 0) return &functions[i];
  }
  return NULL;
}

static void release(Object* object) {
  if (object == NULL || object->kind == BUILT_IN || --object->users > 0) return;
  if (object->kind == LIBRARY) dlclose(object->loaded);
  release(object->library);
  free(object);
}

/* ---- calls --------------------------------------------------------------------------------------- */

static double now_s(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static int run_kernel(Kernel kernel, Any* arguments, int count) {
  Any result;
  memset(&result, 0, sizeof result);
  if (kernel(NULL, arguments, count, &result) == 0) return 0;
  return error.message[0] != 0 ? -1 : fail("the kernel failed", "it does not say why");
}

/* Seconds of one run, for each repeat; src/runtime/timing.cc of TVM says how the number of runs grows. */
static int time_kernel(const Object* of, Any* arguments, int count) {
  size_t repeats = of->repeats > 0 ? (size_t)of->repeats : 1;
  int64_t number = of->number > 0 ? of->number : 1;
  double* seconds = calloc(repeats, sizeof *seconds);
  if (seconds == NULL) return fail("timing", "no memory");
  int status = run_kernel(of->kernel, arguments, count); /* a first one that does not count */
  for (size_t i = 0; i < repeats && status == 0; ++i) {
    double took_ms = 0;
    int64_t zeros = 0;
    do {
      if (took_ms > 0) {
        double enough = (double)of->least_ms / (took_ms / (double)number) + 1, more = (double)number * 1.618;
        number = (int64_t)(enough > more ? enough : more);
      }
      double start_s = now_s();
      for (int64_t run = 0; run < number && status == 0; ++run) status = run_kernel(of->kernel, arguments, count);
      took_ms = (now_s() - start_s) * 1e3;
      if (took_ms <= 0) zeros++;
    } while (status == 0 && took_ms < (double)of->least_ms && zeros < of->most_zeros);
    seconds[i] = took_ms / 1e3 / (double)number;
  }
  if (status == 0) {
    begin(RETURN, 2);
    put_number(INT, BYTES);
    put_bytes(RAW_BYTES, seconds, repeats * sizeof *seconds);
    end();
  }
  free(seconds);
  return status;
}

static int call(const Object* object, Value* values, int count) {
  Any arguments[MOST_VALUES];
  error.message[0] = 0;
  if (object == NULL) return fail("the call", "there is no such function");
  if (object->kind == BUILT_IN) return object->body(values, count);
  for (int i = 0; i < count; ++i) {
    if (is_text(&values[i])) return fail("the kernel", "it takes tensors and numbers");
    arguments[i] = values[i].any;
  }
  if (object->kind == EVALUATOR) return time_kernel(object, arguments, count);
  return run_kernel(object->kernel, arguments, count) == 0 ? give_nothing() : -1;
}

/* ---- memory -------------------------------------------------------------------------------------- */

static uint64_t size_of(const Tensor* tensor) {
  uint64_t items = 1;
  for (int32_t i = 0; i < tensor->rank; ++i) items *= (uint64_t)tensor->shape[i];
  return (items * tensor->bits * tensor->lanes + 7) / 8;
}

static char* start_of(const Tensor* tensor) { return (char*)tensor->data + tensor->byte_offset; }

static int answer_memory(uint64_t size, uint64_t alignment) {
  void* memory = NULL;
  if (alignment < EDGETUNE_ALIGNMENT) alignment = EDGETUNE_ALIGNMENT;
  if (size > SIZE_MAX / 2 || posix_memalign(&memory, (size_t)alignment, size == 0 ? 1 : (size_t)size) != 0) {
    return fail("a tensor", "the device has no memory for it");
  }
  begin(RETURN, 1);
  put_number(OPAQUE, (int64_t)(uintptr_t)memory);
  end();
  return 0;
}

static void copy_from(void) {
  Value value;
  uint64_t size;
  memset(&value, 0, sizeof value);
  take_tensor(&value);
  TAKE(size);
  uint64_t length = size + sizeof(int32_t);
  int32_t code = COPY_ACK;
  send_all(&length, sizeof length);
  send_all(&code, sizeof code);
  send_all(start_of(&value.tensor), (size_t)size);
}

static void copy_to(void) {
  Value value;
  uint64_t size;
  memset(&value, 0, sizeof value);
  take_tensor(&value);
  TAKE(size);
  memcpy(start_of(&value.tensor), take(size), (size_t)size);
  answer_nothing();
}

/* ---- requests ------------------------------------------------------------------------------------ */

static void init_session(void) {
  static const char version[] = "0.8.0";
  uint64_t length;
  Value values[MOST_VALUES];
  TAKE(length);
  int same = length == sizeof version - 1 && memcmp(take(length), version, sizeof version - 1) == 0;
  if (same && take_values(values) == 0) {
    answer_nothing();
  } else {
    fail("the session", "the client speaks another version of TVM's RPC than 0.8.0");
    answer_exception();
  }
}

static int ask_system(enum Code code, Value* values) {
  switch (code) {
    case GET_GLOBAL:
      begin(RETURN, 1);
      put_number(OPAQUE, (int64_t)(uintptr_t)global_function(&values[0]));
      end();
      return 0;
    case FREE_HANDLE:
      release(values[0].any.value.pointer);
      break;
    case GET_ATTRIBUTE: /* only whether there is a CPU: attribute 0 of device type 1 */
      begin(RETURN, 1);
      put_number(INT, values[1].any.value.integer == 0 && (int32_t)values[0].any.value.integer == 1);
      end();
      return 0;
    case ALLOC:
      return answer_memory((uint64_t)values[1].any.value.integer, (uint64_t)values[2].any.value.integer);
    case ALLOC_SCOPED:
      return answer_memory(size_of(&values[0].tensor), 0);
    case FREE:
      free(values[1].any.value.pointer);
      break;
    case COPY_AMONG:
      memcpy(start_of(&values[1].tensor), start_of(&values[0].tensor), (size_t)size_of(&values[0].tensor));
      break;
    case SET_DEVICE: case SYNC:
      break;
    default:
      return fail("the request", "this runner does not know it");
  }
  answer_nothing();
  return 0;
}

static void handle(int32_t code) {
  static Value values[MOST_VALUES];
  int status = 0;
  uint64_t function;
  switch (code) {
    case INIT:
      init_session();
      return;
    case COPY_FROM:
      copy_from();
      return;
    case COPY_TO:
      copy_to();
      return;
    case CALL: {
      TAKE(function);
      int count = take_values(values);
      status = call((const Object*)(uintptr_t)function, values, count);
      break;
    }
    default:
      take_values(values);
      status = ask_system(code, values);
  }
  if (status != 0) answer_exception();
}

/* Serve a session until its client ends it: the exit code of its process. */
int edgetune_serve_rpc(int socket, const char* folder, int threads) {
  connection = socket;
  files = folder;
  if (start_threads(threads) != 0) {
    fprintf(stderr, "runner: %s\n", error.message);
    return 5;
  }
  for (;;) {
    uint64_t length;
    int32_t code;
    receive(&length, sizeof length);
    if (length == 0) continue;
    if (length < sizeof code || length > SIZE_MAX / 2) return 5;
    if (length > request.room) {
      request.room = (size_t)length;
      request.data = grown(request.data, request.room);
    }
    receive(request.data, (size_t)length);
    request.size = (size_t)length;
    request.at = 0;
    TAKE(code);
    if (code == SHUTDOWN) return 0;
    handle(code);
  }
}

/* Times the instructions of TVM's virtual machine where it runs: for devices, whose programs nobody can observe from
 * afar, since each instruction would have to call back over the network.
 *
 * Loaded by TVM beside the program. The machine is told to make its observer with the function FACTORY; it is then
 * called before and after each instruction with the function, its name, whether this is before, the result, and the
 * arguments (VirtualMachineImpl of tvm/runtime/vm). What it notes is read as text. For one session, one thread.
 */
#include "internal.h"

/* libc, and the runner's libtvm_ffi */
void *realloc(void *memory, size_t size);
size_t strlen(const char *text);
typedef struct et_bytes {
  const char *data;
  size_t size;
} et_bytes;
typedef int (*et_function)(void *self, const et_any *arguments, int32_t count, et_any *result);
int TVMFFIFunctionCreate(void *self, et_function call, void (*deleter)(void *self), void **function);
int TVMFFIFunctionSetGlobal(const et_bytes *name, void *function, int override);
int TVMFFIObjectDecRef(void *object);
void TVMFFIErrorSetRaisedFromCStr(const char *kind, const char *message);

/* Of tvm/ffi/c_api.h. */
enum { TYPE_INT = 1, TYPE_BOOL = 2, TYPE_RAW_TEXT = 8, TYPE_SMALL_TEXT = 11, TYPE_OBJECT = 64 };
enum { TYPE_TEXT = 65, TYPE_FUNCTION = 68, TYPE_TENSOR = 70, OBJECT_HEADER_BYTES = 24 };
enum { NAME = 1, BEFORE = 2, FIRST_ARGUMENT = 4, MOST_DIGITS = 24, CLOCK_MONOTONIC_ = 1 };
#define FACTORY "edgetune.observer"

static char *notes; /* a line "NANOSECONDS BYTES NAME" for each instruction since `begin` */
static size_t used, room;
static int lost; /* there was no memory for a line */
static uint64_t started_ns;

static int failed(const char *message) {
  TVMFFIErrorSetRaisedFromCStr("RuntimeError", message);
  return -1;
}

static uint64_t now_ns(void) {
  struct et_timespec now;
  clock_gettime(CLOCK_MONOTONIC_, &now);
  return (uint64_t)now.seconds * 1000000000u + (uint64_t)now.nanoseconds;
}

static const et_tensor *tensor(const et_any *value) {
  if (value->type_index == ET_TYPE_DLTENSOR) return value->value.pointer;
  if (value->type_index == TYPE_TENSOR) return (const et_tensor *)((const char *)value->value.pointer + OBJECT_HEADER_BYTES);
  return NULL;
}

static uint64_t size_of(const et_tensor *of) {
  uint64_t count = 1;
  for (int32_t i = 0; i < of->rank; i++) count *= (uint64_t)of->shape[i];
  return (count * of->dtype_bits * of->dtype_lanes + 7) / 8;
}

static et_bytes text(const et_any *value) {
  if (value->type_index == TYPE_RAW_TEXT) return (et_bytes){value->value.pointer, strlen(value->value.pointer)};
  if (value->type_index == TYPE_SMALL_TEXT) return (et_bytes){(const char *)&value->value, value->padding};
  if (value->type_index == TYPE_TEXT) return *(const et_bytes *)((const char *)value->value.pointer + OBJECT_HEADER_BYTES);
  return (et_bytes){"?", 1};
}

static void append(const char *data, size_t size) {
  memcpy(notes + used, data, size);
  used += size;
}

static void note(uint64_t time_ns, const et_any *arguments, int32_t count) {
  char digits[MOST_DIGITS];
  et_bytes name = text(&arguments[NAME]);
  uint64_t moved = 0;
  for (int32_t i = FIRST_ARGUMENT; i < count; i++) {
    const et_tensor *one = tensor(&arguments[i]);
    if (one != NULL) moved += size_of(one);
  }
  size_t most = used + name.size + 2 * MOST_DIGITS + 3;
  if (most > room) {
    char *larger = realloc(notes, 2 * most);
    if (larger == NULL) {
      lost = 1;
      return;
    }
    notes = larger, room = 2 * most;
  }
  const char *number = et_decimal(time_ns, digits);
  append(number, strlen(number)), append(" ", 1);
  number = et_decimal(moved, digits);
  append(number, strlen(number)), append(" ", 1);
  append(name.data, name.size), append("\n", 1);
}

static int observe(void *self, const et_any *arguments, int32_t count, et_any *result) {
  uint64_t now = now_ns();
  (void)self;
  result->type_index = TYPE_INT; /* 0: go on */
  result->value.integer = 0;
  if (count < FIRST_ARGUMENT) return 0;
  if (arguments[BEFORE].value.integer == 0) note(now - started_ns, arguments, count);
  started_ns = now_ns(); /* after an instruction this is not read */
  return 0;
}

static int make_observer(void *self, const et_any *arguments, int32_t count, et_any *result) {
  (void)self, (void)arguments, (void)count;
  void *function = NULL;
  if (TVMFFIFunctionCreate(NULL, observe, NULL, &function) != 0) return -1;
  result->type_index = TYPE_FUNCTION;
  result->value.pointer = function;
  return 0;
}

/* (): what the machine's set_instrument wants is there, under FACTORY. */
EDGETUNE_API int __tvm_ffi_edgetune_observer(void *self, et_any *arguments, int32_t count, et_any *result) {
  static const et_bytes name = {FACTORY, sizeof FACTORY - 1};
  void *factory = NULL;
  (void)self, (void)arguments, (void)count, (void)result;
  if (TVMFFIFunctionCreate(NULL, make_observer, NULL, &factory) != 0) return -1;
  int status = TVMFFIFunctionSetGlobal(&name, factory, 1);
  TVMFFIObjectDecRef(factory);
  return status;
}

/* (): forget what was noted. */
EDGETUNE_API int __tvm_ffi_edgetune_begin(void *self, et_any *arguments, int32_t count, et_any *result) {
  (void)self, (void)arguments, (void)count, (void)result;
  used = 0, lost = 0;
  return 0;
}

/* (tensor of uint8 or None): the notes, as far as the tensor has room. How many bytes they have. */
EDGETUNE_API int __tvm_ffi_edgetune_notes(void *self, et_any *arguments, int32_t count, et_any *result) {
  (void)self;
  if (count != 1) return failed("edgetune_notes takes a tensor or None");
  if (lost) return failed("there is no memory for the times of the kernels; free some");
  const et_tensor *to = tensor(&arguments[0]);
  if (to != NULL) memcpy((char *)to->data + to->byte_offset, notes, used < size_of(to) ? used : (size_t)size_of(to));
  result->type_index = TYPE_INT;
  result->value.integer = (int64_t)used;
  return 0;
}

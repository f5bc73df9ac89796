/* A standalone library behind functions that TVM's RPC can call: how a device's runner compares and times it.
 *
 * Linked against the model's library, loaded by TVM beside it. One model, one instance, for one session.
 */
#include "internal.h"

enum { TYPE_NONE = 0, TYPE_INT = 1, TYPE_TENSOR = 70, OBJECT_HEADER_BYTES = 24 }; /* of tvm/ffi/c_api.h */

void TVMFFIErrorSetRaisedFromCStr(const char *kind, const char *message); /* the runner's */

static edgetune_model *opened; /* held by the instance */
static edgetune_instance *instance;

static int failed(const char *message) {
  TVMFFIErrorSetRaisedFromCStr("RuntimeError", message);
  return -1;
}

static const et_tensor *tensor(const et_any *argument) {
  if (argument->type_index == ET_TYPE_DLTENSOR) return argument->value.pointer;
  if (argument->type_index == TYPE_TENSOR)
    return (const et_tensor *)((const char *)argument->value.pointer + OBJECT_HEADER_BYTES);
  return NULL;
}

static unsigned char *bytes(const et_tensor *of, size_t *size) {
  *size = of->dtype_bits / 8u;
  for (int32_t i = 0; i < of->rank; i++) *size *= (size_t)of->shape[i];
  return (unsigned char *)of->data + of->byte_offset;
}

/* (weights or None, threads): what comes before is gone. */
EDGETUNE_API int __tvm_ffi_edgetune_open(void *self, et_any *arguments, int32_t count, et_any *result) {
  edgetune_error error;
  edgetune_model *model;
  size_t size = 0;
  (void)self, (void)result;
  if (count != 2 || arguments[1].type_index != TYPE_INT) return failed("edgetune_open takes weights and threads");
  const et_tensor *weights = tensor(&arguments[0]);
  const void *data = weights == NULL ? NULL : bytes(weights, &size);
  edgetune_options options = {.threads = (int32_t)arguments[1].value.integer};
  edgetune_free(instance);
  instance = NULL;
  if (edgetune_open_memory(data, size, 0, &model, &error) != EDGETUNE_OK) return failed(error.message);
  edgetune_status status = edgetune_create(model, &options, &instance, &error);
  edgetune_close(model);
  opened = model;
  return status == EDGETUNE_OK ? 0 : failed(error.message);
}

/* (index, tensor): copies an input. */
EDGETUNE_API int __tvm_ffi_edgetune_set(void *self, et_any *arguments, int32_t count, et_any *result) {
  size_t size;
  (void)self, (void)result;
  const et_tensor *from = count == 2 ? tensor(&arguments[1]) : NULL;
  if (instance == NULL || from == NULL) return failed("edgetune_set takes an index and a tensor, after edgetune_open");
  const void *data = bytes(from, &size);
  int32_t index = (int32_t)arguments[0].value.integer;
  return edgetune_set_input(instance, index, data, size) == EDGETUNE_OK ? 0 : failed(edgetune_last_error(instance));
}

EDGETUNE_API int __tvm_ffi_edgetune_run(void *self, et_any *arguments, int32_t count, et_any *result) {
  (void)self, (void)arguments, (void)count, (void)result;
  if (instance == NULL) return failed("edgetune_run comes after edgetune_open");
  return edgetune_run(instance) == EDGETUNE_OK ? 0 : failed(edgetune_last_error(instance));
}

/* (index, tensor): copies an output. */
EDGETUNE_API int __tvm_ffi_edgetune_get(void *self, et_any *arguments, int32_t count, et_any *result) {
  size_t size;
  (void)self, (void)result;
  const et_tensor *to = count == 2 ? tensor(&arguments[1]) : NULL;
  if (instance == NULL || to == NULL) return failed("edgetune_get takes an index and a tensor, after edgetune_open");
  void *data = bytes(to, &size);
  int32_t index = (int32_t)arguments[0].value.integer;
  return edgetune_get_output(instance, index, data, size) == EDGETUNE_OK ? 0 : failed(edgetune_last_error(instance));
}

typedef struct recorder {
  int64_t *times_ns;
  int32_t count;
} recorder;

static void record(void *user, int32_t kernel, uint64_t start_ns, uint64_t duration_ns) {
  recorder *into = user;
  (void)start_ns;
  if (kernel < into->count) into->times_ns[kernel] = (int64_t)duration_ns;
}

/* (tensor of int64): one run, and how long each of its kernels took, in nanoseconds. */
EDGETUNE_API int __tvm_ffi_edgetune_observe(void *self, et_any *arguments, int32_t count, et_any *result) {
  size_t size;
  (void)self, (void)result;
  const et_tensor *to = count == 1 ? tensor(&arguments[0]) : NULL;
  if (instance == NULL || to == NULL) return failed("edgetune_observe takes a tensor, after edgetune_open");
  recorder into = {(int64_t *)bytes(to, &size), 0};
  into.count = (int32_t)(size / sizeof(int64_t));
  edgetune_set_profile_hook(instance, record, &into);
  edgetune_status status = edgetune_run(instance);
  edgetune_set_profile_hook(instance, NULL, NULL);
  return status == EDGETUNE_OK ? 0 : failed(edgetune_last_error(instance));
}

/* (tensor of uint8 or None): what the kernels are, a line "BYTES NAME" for each, as far as the tensor has room.
 * How many bytes all lines have. */
EDGETUNE_API int __tvm_ffi_edgetune_kernels(void *self, et_any *arguments, int32_t count, et_any *result) {
  size_t room = 0, used = 0;
  char number[24];
  (void)self;
  if (instance == NULL || count != 1) return failed("edgetune_kernels takes a tensor or None, after edgetune_open");
  const et_tensor *to = tensor(&arguments[0]);
  unsigned char *data = to == NULL ? NULL : bytes(to, &room);
  for (int32_t i = 0; i < edgetune_num_kernels(opened); i++) {
    const edgetune_kernel_info *kernel = edgetune_kernel(opened, i);
    const char *parts[] = {et_decimal(kernel->bytes, number), " ", kernel->name, "\n"};
    for (int part = 0; part < 4; part++)
      for (const char *at = parts[part]; *at; at++, used++)
        if (used < room) data[used] = (unsigned char)*at;
  }
  result->type_index = TYPE_INT;
  result->value.integer = (int64_t)used;
  return 0;
}

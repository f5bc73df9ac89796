/* Kernels as TVM emits them, written by hand: packed functions over DLTensors. */
#include "internal.h"

typedef struct {
  void *sync_handle;
  int32_t num_task;
} group;
typedef int (*task)(int, group *, void *);
extern int (*__TVMBackendParallelLaunch)(task, void *, int);
extern void *(*__TVMBackendAllocWorkspace)(int, int, uint64_t, int, int);
extern int (*__TVMBackendFreeWorkspace)(int, int, void *);
void TVMFFIErrorSetRaisedFromCStrParts(const char *kind, const char **parts, int32_t num_parts);

enum { VALUES = 1000 };

static float *data(et_any *arguments, int index) { return ((et_tensor *)arguments[index].value.pointer)->data; }

typedef struct {
  const float *a, *b;
  float *c;
} operands;

static int add_part(int part, group *all, void *closure) {
  operands *o = closure;
  int chunk = (VALUES + all->num_task - 1) / all->num_task;
  float *copy = __TVMBackendAllocWorkspace(1, 0, sizeof(float) * VALUES, 2, 32);
  if (copy == NULL) return -1;
  for (int i = part * chunk; i < (part + 1) * chunk && i < VALUES; i++) copy[i] = o->a[i];
  for (int i = part * chunk; i < (part + 1) * chunk && i < VALUES; i++) o->c[i] = copy[i] + o->b[i];
  return __TVMBackendFreeWorkspace(1, 0, copy);
}

/* c = a + b, in parallel, with a workspace on every thread. */
int __tvm_ffi_add(void *self, et_any *arguments, int32_t count, et_any *result) {
  operands o = {data(arguments, 0), data(arguments, 1), data(arguments, 2)};
  (void)self, (void)result;
  return count == 3 ? __TVMBackendParallelLaunch(add_part, &o, 0) : -1;
}

/* A parallel kernel inside a parallel kernel. */
static int nested_part(int part, group *all, void *closure) {
  (void)all;
  return part == 0 ? __TVMBackendParallelLaunch(add_part, closure, 0) : 0;
}

int __tvm_ffi_nested(void *self, et_any *arguments, int32_t count, et_any *result) {
  operands o = {data(arguments, 0), data(arguments, 1), data(arguments, 2)};
  (void)self, (void)result, (void)count;
  return __TVMBackendParallelLaunch(nested_part, &o, 7);
}

/* Fails where the first value is negative; in a thread of the pool where it is below -1. */
static int fail_part(int part, group *all, void *closure) {
  (void)closure;
  return part == all->num_task - 1 ? -1 : 0;
}

int __tvm_ffi_fail(void *self, et_any *arguments, int32_t count, et_any *result) {
  const char *parts[] = {"the first value ", "is negative"};
  float first = data(arguments, 0)[0];
  (void)self, (void)result, (void)count;
  if (first >= 0) return 0;
  if (first < -1) return __TVMBackendParallelLaunch(fail_part, NULL, 0);
  TVMFFIErrorSetRaisedFromCStrParts("ValueError", parts, 2);
  return -1;
}

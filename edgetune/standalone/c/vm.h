/* What vm.c and the generated program of a model for TVM's virtual machine share. */
#ifndef EDGETUNE_VM_H
#define EDGETUNE_VM_H

#include "internal.h"

typedef struct et_vm_tensor {
  int32_t rank;
  uint8_t code, bits; /* DLPack's */
  const int64_t *shape;
} et_vm_tensor;

/* A function of the machine; tensors: of its arguments (inputs, then weights), then of its outputs. */
typedef struct et_vm_function {
  const char *name;
  int32_t num_arguments, num_outputs;
  const et_vm_tensor *tensors;
} et_vm_function;

extern const uint32_t et_vm_ffi_version[3]; /* that the model was compiled with */

/* Run it on places: arguments, then outputs. 0, or -1 with the error of the run. */
int et_vm_run(const et_vm_function *function, const et_any *places);

#endif

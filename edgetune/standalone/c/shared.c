/* The functions that open the model of a shared library, whose program the linker puts in here. */
#include "internal.h"

extern __attribute__((visibility("hidden"))) const edgetune_program et_private_program;

edgetune_status edgetune_open(const char *weights_path, uint32_t flags, edgetune_model **model,
                              edgetune_error *error) {
  return edgetune_open_program(&et_private_program, weights_path, flags, model, error);
}

edgetune_status edgetune_open_memory(const void *weights, size_t size_bytes, uint32_t flags,
                                     edgetune_model **model, edgetune_error *error) {
  if (et_private_program.weights != NULL) return edgetune_open(NULL, flags, model, error);
  return edgetune_open_program_memory(&et_private_program, weights, size_bytes, flags, model, error);
}

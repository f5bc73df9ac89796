/* The functions that open the model of a shared library; EDGETUNE_PROGRAM names its program. */
#include "internal.h"

extern const edgetune_program EDGETUNE_PROGRAM;

edgetune_status edgetune_open(const char *weights_path, uint32_t flags, edgetune_model **model,
                              edgetune_error *error) {
  return edgetune_open_program(&EDGETUNE_PROGRAM, weights_path, flags, model, error);
}

edgetune_status edgetune_open_memory(const void *weights, size_t size_bytes, uint32_t flags,
                                     edgetune_model **model, edgetune_error *error) {
  if (EDGETUNE_PROGRAM.weights != NULL) return edgetune_open(NULL, flags, model, error);
  return edgetune_open_program_memory(&EDGETUNE_PROGRAM, weights, size_bytes, flags, model, error);
}

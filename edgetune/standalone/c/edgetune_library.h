/* Models loaded while the app runs, several side by side (C99, header only, over dlopen).
 *
 *     edgetune_library library;
 *     if (edgetune_library_load("model.so", &library, &error) != EDGETUNE_OK) { puts(error.message); return 1; }
 *     library.open("weights.bin", 0, &model, &error);
 *
 * The functions of edgetune.h are fields of the same name, without their prefix. Where glibc is older than 2.34,
 * link with -ldl.
 */
#ifndef EDGETUNE_LIBRARY_H
#define EDGETUNE_LIBRARY_H

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "edgetune.h"

/* clang-format off */
#define EDGETUNE_FUNCTIONS(F)                                                                                \
  F(api_version) F(version) F(open) F(open_memory) F(close) F(model_name) F(model_target) F(model_threads)   \
  F(model_arena_bytes) F(num_inputs) F(num_outputs) F(num_kernels) F(input_info) F(output_info) F(kernel)    \
  F(find_input) F(find_output) F(num_sizes) F(open_size) F(create) F(free) F(set_input) F(bind_input)        \
  F(bind_output) F(input) F(run) F(output) F(get_output) F(last_error) F(set_profile_hook)
/* clang-format on */

typedef struct edgetune_library {
  void *handle;
#define EDGETUNE_FIELD(name) __typeof__(&edgetune_##name) name;
  EDGETUNE_FUNCTIONS(EDGETUNE_FIELD)
#undef EDGETUNE_FIELD
} edgetune_library;

/* Load a library: a path, or a name that the system finds. It stays loaded until edgetune_library_unload. */
static inline edgetune_status edgetune_library_load(const char *path, edgetune_library *library,
                                                    edgetune_error *error) {
  edgetune_error unused;
  if (error == NULL) error = &unused;
  memset(library, 0, sizeof *library);
  error->message[0] = 0;
  library->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  const char *missing = library->handle == NULL ? dlerror() : NULL;
#define EDGETUNE_FIND(name)                                                                    \
  if (missing == NULL) {                                                                       \
    void *found = dlsym(library->handle, "edgetune_" #name);                                   \
    memcpy(&library->name, &found, sizeof found); /* ISO C has no cast to a function pointer */ \
    if (found == NULL) missing = "it has no function edgetune_" #name;                         \
  }
  EDGETUNE_FUNCTIONS(EDGETUNE_FIND)
#undef EDGETUNE_FIND
  if (missing == NULL && library->api_version() != EDGETUNE_API_VERSION) missing = "it has another API version";
  if (missing == NULL) return EDGETUNE_OK;
  error->status = EDGETUNE_ERROR_FILE;
  snprintf(error->message, sizeof error->message, "%.100s is no edgetune model: %.120s", path, missing);
  if (library->handle != NULL) dlclose(library->handle);
  library->handle = NULL;
  return EDGETUNE_ERROR_FILE;
}

/* When all its models are closed and all its instances freed. */
static inline void edgetune_library_unload(edgetune_library *library) {
  if (library->handle != NULL) dlclose(library->handle);
  library->handle = NULL;
}

/* Load and open the first of the models in a folder that this machine can run: the folder that 'edgetune bundle
 * merge' writes, whose file `variants` has a line LIBRARY WEIGHTS for each, the best first; or a plain bundle. */
static inline edgetune_status edgetune_library_open_best(const char *folder, uint32_t flags,
                                                         edgetune_library *library, edgetune_model **model,
                                                         edgetune_error *error) {
  edgetune_error unused;
  char path[1024], weights_path[1024], name[256], weights[256];
  if (error == NULL) error = &unused;
  snprintf(path, sizeof path, "%s/variants", folder);
  FILE *list = fopen(path, "r");
  edgetune_status status = EDGETUNE_ERROR_FILE;
  snprintf(error->message, sizeof error->message, "%.200s names no models", path);
  strcpy(name, "model.so");
  strcpy(weights, "weights.bin");
  while (list == NULL || fscanf(list, "%255s %255s", name, weights) == 2) {
    snprintf(path, sizeof path, "%s/%s", folder, name);
    snprintf(weights_path, sizeof weights_path, "%s/%s", folder, weights);
    status = edgetune_library_load(path, library, error);
    if (status == EDGETUNE_OK) {
      status = library->open(weights_path, flags, model, error);
      if (status == EDGETUNE_OK) break;
      edgetune_library_unload(library);
      /* What is damaged is no reason to run something slower: only a wrong machine is. */
      if (status != EDGETUNE_ERROR_MACHINE) break;
    }
    if (list == NULL) break;
  }
  if (list != NULL) fclose(list);
  return status;
}

#endif

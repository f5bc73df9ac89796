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

/* Of a library by its path, what the system's loader does not say: of one for another machine it may say that there is
 * no such file, and one that was cut short may end the process. Other files and names are left to it. */
static inline edgetune_status edgetune_library_check(const char *path, edgetune_error *error) {
#if defined(__x86_64__)
  const unsigned here = 62;
#elif defined(__aarch64__)
  const unsigned here = 183;
#elif defined(__arm__)
  const unsigned here = 40;
#else
  const unsigned here = 243;
#endif
  /* The header of an ELF file: at 4 whether it is of 64 bits, at 18 the machine; the table of sections, which comes last,
   * begins at `sections` bytes and has as many entries as the last of three halves says, the size of one being before. */
  unsigned char header[64] = {0};
  FILE *file = fopen(path, "rb");
  if (file == NULL) return EDGETUNE_OK;
  size_t got = fread(header, 1, sizeof header, file);
  long size = fseek(file, 0, SEEK_END) == 0 ? ftell(file) : 0;
  fclose(file);
  if (got < 20 || memcmp(header, "\177ELF", 4) != 0) return EDGETUNE_OK;
  unsigned machine = header[18] | (unsigned)header[19] << 8;
  if (machine != here) {
    const char *name = machine == 62 ? "x86_64" : machine == 183 ? "aarch64" : machine == 40 ? "arm" : machine == 243 ? "riscv64" : "other";
    error->status = EDGETUNE_ERROR_MACHINE;
    snprintf(error->message, sizeof error->message,
             "%.120s was compiled for %s machines, this is another; compile it for this machine", path, name);
    return error->status;
  }
  const unsigned char *sections = header + (header[4] == 2 ? 0x28 : 0x20), *halves = header + (header[4] == 2 ? 0x3a : 0x2e);
  uint64_t end = 0;
  for (int i = header[4] == 2 ? 8 : 4; i-- > 0;) end = end << 8 | sections[i];
  end += (uint64_t)(halves[0] | (unsigned)halves[1] << 8) * (halves[2] | (unsigned)halves[3] << 8);
  if (got == sizeof header && end <= (uint64_t)size) return EDGETUNE_OK;
  error->status = EDGETUNE_ERROR_DAMAGED;
  snprintf(error->message, sizeof error->message, "%.120s was cut short, it has %ld bytes; copy it again", path, size);
  return error->status;
}

/* Load a library: a path, or a name that the system finds. It stays loaded until edgetune_library_unload. */
static inline edgetune_status edgetune_library_load(const char *path, edgetune_library *library,
                                                    edgetune_error *error) {
  edgetune_error unused;
  if (error == NULL) error = &unused;
  memset(library, 0, sizeof *library);
  error->message[0] = 0;
  if (edgetune_library_check(path, error) != EDGETUNE_OK) return error->status;
  library->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library->handle == NULL) {
    const char *reason = dlerror();
    error->status = EDGETUNE_ERROR_FILE;
    if (reason != NULL && strstr(reason, "TVMFFI") != NULL)
      snprintf(error->message, sizeof error->message,
               "%.100s has no C API, since it is for a GPU or for a TVM of your own; load it with Python's edgetune.load, "
               "or compile it for a CPU", path);
    else
      snprintf(error->message, sizeof error->message, "cannot load a model: %.180s; check the path, or copy the bundle again",
               reason == NULL ? path : reason);
    return error->status;
  }
  const char *missing = NULL;
#define EDGETUNE_FIND(name)                                                                    \
  if (missing == NULL) {                                                                       \
    void *found = dlsym(library->handle, "edgetune_" #name);                                   \
    memcpy(&library->name, &found, sizeof found); /* ISO C has no cast to a function pointer */ \
    if (found == NULL) missing = "edgetune_" #name;                                            \
  }
  EDGETUNE_FUNCTIONS(EDGETUNE_FIND)
#undef EDGETUNE_FIND
  if (missing == NULL && library->api_version() == EDGETUNE_API_VERSION) return EDGETUNE_OK;
  error->status = EDGETUNE_ERROR_FILE;
  if (missing != NULL)
    snprintf(error->message, sizeof error->message,
             "%.100s is no edgetune model for apps (it has no function %.40s); give the model.so of a bundle for a CPU", path,
             missing);
  else
    snprintf(error->message, sizeof error->message,
             "%.120s has another version of the C API; build the bundle again, or take the headers in it", path);
  dlclose(library->handle);
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
    if (list == NULL || status == EDGETUNE_ERROR_DAMAGED) break;
  }
  if (list != NULL) fclose(list);
  return status;
}

#endif

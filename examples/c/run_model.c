/* Runs a model once: run_model WEIGHTS FOLDER
 *
 * Reads FOLDER/input0, input1, ... and writes FOLDER/output0, output1, ...: the bytes of the tensors.
 *
 *     cc run_model.c -IBUNDLE BUNDLE/model.so -Wl,-rpath,BUNDLE -o run_model               the shared library
 *     cc -DPROGRAM=edgetune_program_NAME run_model.c -IBUNDLE BUNDLE/libmodel.a -pthread -lm   the static one
 */
#include <stdio.h>

#ifdef PROGRAM
#include "model.h"
#define OPEN(...) edgetune_open_program(&PROGRAM, __VA_ARGS__)
#else
#include "edgetune.h"
#define OPEN(...) edgetune_open(__VA_ARGS__)
#endif

static int fail(const char *message) {
  fprintf(stderr, "error: %s\n", message);
  return 1;
}

static FILE *tensor_file(const char *folder, const char *kind, int index, const char *mode) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%s%d", folder, kind, index);
  return fopen(path, mode);
}

int main(int argc, char **argv) {
  edgetune_model *model;
  edgetune_instance *instance;
  edgetune_error error;
  if (argc != 3) return fail("give the file of weights and a folder with the inputs");
  if (OPEN(argv[1], 0, &model, &error) != EDGETUNE_OK) return fail(error.message);
  if (edgetune_create(model, NULL, &instance, &error) != EDGETUNE_OK) return fail(error.message);
  for (int i = 0; i < edgetune_num_inputs(model); i++) {
    size_t size = edgetune_input_info(model, i)->size_bytes;
    FILE *file = tensor_file(argv[2], "input", i, "rb");
    if (file == NULL || fread(edgetune_input(instance, i), 1, size, file) != size) return fail("an input is missing");
    fclose(file);
  }
  if (edgetune_run(instance) != EDGETUNE_OK) return fail(edgetune_last_error(instance));
  for (int i = 0; i < edgetune_num_outputs(model); i++) {
    size_t size = edgetune_output_info(model, i)->size_bytes;
    FILE *file = tensor_file(argv[2], "output", i, "wb");
    if (file == NULL || fwrite(edgetune_output(instance, i), 1, size, file) != size || fclose(file) != 0)
      return fail("an output cannot be written");
  }
  edgetune_free(instance);
  edgetune_close(model);
  return 0;
}

/* A bundle's folder: every combination of sizes in an instance of its own, in a thread of its own, twice. */
#include <pthread.h>
#include <stdlib.h>

#include "edgetune_library.h"

enum { MAX_SIZES = 8 };

static edgetune_library library;

static void must(edgetune_status status, const char *message) {
  if (status == EDGETUNE_OK) return;
  fprintf(stderr, "%d: %s\n", (int)status, message);
  exit(1);
}

static void *work(void *argument) {
  edgetune_model *model = argument;
  edgetune_instance *instance;
  edgetune_error error;
  int32_t core = 0;
  edgetune_options options = {.threads = 2, .cores = &core, .num_cores = 1};
  must(library.create(model, &options, &instance, &error), error.message);
  const edgetune_tensor_info *info = library.input_info(model, 0);
  float *own = aligned_alloc(EDGETUNE_ALIGNMENT, (info->size_bytes + 63) / 64 * 64);
  for (size_t i = 0; i < info->size_bytes / sizeof(float); i++) own[i] = (float)(i * 7 % 17);
  must(library.set_input(instance, 0, own, info->size_bytes), library.last_error(instance));
  must(library.run(instance), library.last_error(instance));
  int64_t before = ((const int64_t *)library.output(instance, 1))[0];
  must(library.bind_input(instance, 0, own, info->size_bytes), library.last_error(instance));
  own[0] = 1000;
  must(library.run(instance), library.last_error(instance));
  int64_t after = ((const int64_t *)library.output(instance, 1))[0];
  printf("%d: %g %d %d\n", (int)info->shape[0], ((const float *)library.output(instance, 0))[0], (int)before, (int)after);
  library.free(instance);
  free(own);
  return NULL;
}

int main(int argc, char **argv) {
  edgetune_model *model, *sized[MAX_SIZES];
  edgetune_error error;
  pthread_t threads[MAX_SIZES];
  if (argc != 2) return 2;
  must(edgetune_library_open_best(argv[1], 0, &library, &model, &error), error.message);
  int count = library.num_sizes(model);
  for (int i = 0; i < count; i++) must(library.open_size(model, i, &sized[i], &error), error.message);
  if (library.open_size(model, count, &sized[count], &error) != EDGETUNE_ERROR_ARGUMENT) return 3;
  library.close(model);
  for (int i = 0; i < count; i++) pthread_create(&threads[i], NULL, work, sized[i]);
  for (int i = 0; i < count; i++) pthread_join(threads[i], NULL);
  for (int i = 0; i < count; i++) library.close(sized[i]);
  edgetune_library_unload(&library);
  return 0;
}

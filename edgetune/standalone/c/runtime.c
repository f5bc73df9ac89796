/* Models and instances: everything of edgetune.h but edgetune_open and edgetune_open_memory, which the
 * generated program of a shared library adds. */
#include "internal.h"

#ifndef EDGETUNE_VERSION
#define EDGETUNE_VERSION "unknown"
#endif

#if defined(__x86_64__)
enum { SYS_LSEEK = 8, SYS_MMAP = 9, SYS_MADVISE = 28 };
#elif defined(__arm__)
enum { SYS_LSEEK = 19, SYS_MMAP = 192 /* mmap2, whose offset is 0 here */, SYS_MADVISE = 220 };
#else
enum { SYS_LSEEK = 62, SYS_MMAP = 222, SYS_MADVISE = 233 };
#endif
enum { O_RDONLY_CLOEXEC = 02000000, SEEK_END_ = 2, PROT_READ_ = 1, MAP_PRIVATE_ = 2, MADV_HUGEPAGE_ = 14 };
enum { HUGE_PAGE = 1 << 21 };
enum { DEFAULT_SPIN_US = 100 };

struct edgetune_model {
  const edgetune_program *program;
  const unsigned char *weights;
  void *mapped;           /* NULL: the weights are not ours to unmap */
  edgetune_model *parent; /* whose weights these are; NULL: its own */
  _Atomic uint32_t users;
};

struct edgetune_instance {
  edgetune_model *model;
  et_pool *pool;
  unsigned char *arena;
  unsigned char **own;  /* the instance's memory of each input, then of each output */
  unsigned char **used; /* the same, where the caller's memory was not bound instead */
  et_tensor *tensors;   /* one for each place */
  et_any *arguments;
  edgetune_profile_hook hook;
  void *hook_user;
  edgetune_error error;
};

int32_t edgetune_api_version(void) { return EDGETUNE_API_VERSION; }
const char *edgetune_version(void) { return EDGETUNE_VERSION; }

static size_t aligned(size_t size) {
  return (size + EDGETUNE_ALIGNMENT - 1) / EDGETUNE_ALIGNMENT * EDGETUNE_ALIGNMENT;
}

/* Any change of one 64-bit word changes the sum, for its factor is odd. See weights.py for its twin. */
static uint64_t checksum(const unsigned char *data, uint64_t size) {
  uint64_t sum = size, factor = 0x9e3779b97f4a7c15u;
  for (uint64_t at = 0; at < size; at += 8, factor += 0x9e3779b97f4a7c16u) {
    uint64_t word = 0;
    memcpy(&word, data + at, size - at < 8 ? (size_t)(size - at) : 8);
    sum += (word ^ word >> 32) * (factor | 1);
  }
  return sum;
}

static edgetune_status check_machine(const edgetune_program *program, edgetune_error *error) {
  if (program->version != ET_PROGRAM_VERSION)
    return ET_FAIL(error, EDGETUNE_ERROR_ARGUMENT, "the program was made for another runtime; link both from the same bundle");
  const char *missing = et_missing_feature(program->features);
  if (missing == NULL) return EDGETUNE_OK;
  return ET_FAIL(error, EDGETUNE_ERROR_MACHINE, program->name, " was compiled for ", program->target,
                 " and uses the CPU feature ", missing, ", which this machine lacks; compile it for this machine");
}

static edgetune_status open_model(const edgetune_program *program, const void *weights, void *mapped,
                                  uint32_t flags, edgetune_model **out, edgetune_error *error) {
  if (!(flags & EDGETUNE_NO_CHECKSUM) && checksum(weights, program->weights_bytes) != program->weights_checksum)
    return ET_FAIL(error, EDGETUNE_ERROR_DAMAGED, "the weights of ", program->name,
                   " were changed or damaged; copy them again");
  edgetune_model *model = calloc(1, sizeof *model);
  if (model == NULL) return ET_FAIL(error, EDGETUNE_ERROR_MEMORY, "no memory to open ", program->name);
  model->program = program;
  model->weights = weights;
  model->mapped = mapped;
  atomic_init(&model->users, 1);
  *out = model;
  return EDGETUNE_OK;
}

static edgetune_status wrong_size(const edgetune_program *program, uint64_t size, edgetune_error *error) {
  char is[24], wanted[24];
  return ET_FAIL(error, EDGETUNE_ERROR_DAMAGED, "the weights of ", program->name, " have ", et_decimal(size, is),
                 " bytes in place of ", et_decimal(program->weights_bytes, wanted), "; copy them again");
}

edgetune_status edgetune_open_program_memory(const edgetune_program *program, const void *weights,
                                             size_t size_bytes, uint32_t flags, edgetune_model **model,
                                             edgetune_error *error) {
  if (program == NULL || model == NULL || (weights == NULL && size_bytes != 0))
    return ET_FAIL(error, EDGETUNE_ERROR_ARGUMENT, "a pointer is NULL; give the program, the weights and a model");
  *model = NULL;
  edgetune_status status = check_machine(program, error);
  if (status != EDGETUNE_OK) return status;
  if (size_bytes != program->weights_bytes) return wrong_size(program, size_bytes, error);
  if ((uintptr_t)weights % EDGETUNE_ALIGNMENT != 0)
    return ET_FAIL(error, EDGETUNE_ERROR_ARGUMENT, "the weights do not start at a multiple of 64 bytes; align them");
  return open_model(program, weights, NULL, flags, model, error);
}

edgetune_status edgetune_open_program(const edgetune_program *program, const char *weights_path, uint32_t flags,
                                      edgetune_model **model, edgetune_error *error) {
  if (program == NULL || model == NULL)
    return ET_FAIL(error, EDGETUNE_ERROR_ARGUMENT, "a pointer is NULL; give the program and a model");
  if (program->weights != NULL || program->weights_bytes == 0)
    return edgetune_open_program_memory(program, program->weights, (size_t)program->weights_bytes, flags, model, error);
  *model = NULL;
  edgetune_status status = check_machine(program, error);
  if (status != EDGETUNE_OK) return status;
  if (weights_path == NULL)
    return ET_FAIL(error, EDGETUNE_ERROR_ARGUMENT, program->name, " has its weights in a file; give its path");
  int file = open(weights_path, O_RDONLY_CLOEXEC);
  if (file < 0)
    return ET_FAIL(error, EDGETUNE_ERROR_FILE, "cannot open ", weights_path, "; check the path and its permissions");
  long size = syscall(SYS_LSEEK, file, 0L, (long)SEEK_END_);
  if (size < 0 || (uint64_t)size != program->weights_bytes) {
    close(file);
    return wrong_size(program, size < 0 ? 0 : (uint64_t)size, error);
  }
  long mapped = syscall(SYS_MMAP, 0L, size, (long)PROT_READ_, (long)MAP_PRIVATE_, (long)file, 0L);
  close(file);
  if (mapped == -1)
    return ET_FAIL(error, EDGETUNE_ERROR_FILE, "cannot map ", weights_path, " into memory; free some memory");
  status = open_model(program, (void *)mapped, (void *)mapped, flags, model, error);
  if (status != EDGETUNE_OK) munmap((void *)mapped, (size_t)size);
  return status;
}

void edgetune_close(edgetune_model *model) {
  if (model == NULL || atomic_fetch_sub(&model->users, 1) != 1) return;
  if (model->mapped != NULL) munmap(model->mapped, (size_t)model->program->weights_bytes);
  edgetune_close(model->parent);
  free(model);
}

/* All programs, from that of a model which was not opened by its size. */
static const edgetune_program *sized(const edgetune_model *model, int32_t index) {
  const edgetune_program *program = model->parent == NULL ? model->program : model->parent->program;
  while (program != NULL && index-- > 0) program = program->next;
  return program;
}

int32_t edgetune_num_sizes(const edgetune_model *model) {
  int32_t count = 0;
  while (sized(model, count) != NULL) count++;
  return count;
}

edgetune_status edgetune_open_size(edgetune_model *model, int32_t index, edgetune_model **out, edgetune_error *error) {
  const edgetune_program *program = model == NULL || out == NULL || index < 0 ? NULL : sized(model, index);
  if (program == NULL)
    return ET_FAIL(error, EDGETUNE_ERROR_ARGUMENT, "there is no such combination of sizes; see edgetune_num_sizes");
  edgetune_model *parent = model->parent == NULL ? model : model->parent;
  edgetune_status status = open_model(program, parent->weights, NULL, EDGETUNE_NO_CHECKSUM, out, error);
  if (status != EDGETUNE_OK) return status;
  (*out)->parent = parent;
  atomic_fetch_add(&parent->users, 1);
  return EDGETUNE_OK;
}

const char *edgetune_model_name(const edgetune_model *model) { return model->program->name; }
const char *edgetune_model_target(const edgetune_model *model) { return model->program->target; }
int32_t edgetune_model_threads(const edgetune_model *model) { return model->program->threads; }
int32_t edgetune_num_inputs(const edgetune_model *model) { return model->program->num_inputs; }
int32_t edgetune_num_outputs(const edgetune_model *model) { return model->program->num_outputs; }
int32_t edgetune_num_kernels(const edgetune_model *model) { return (int32_t)model->program->num_steps; }

static const edgetune_tensor_info *info(const edgetune_tensor_info *infos, int32_t count, int32_t index) {
  return index < 0 || index >= count ? NULL : &infos[index];
}

const edgetune_tensor_info *edgetune_input_info(const edgetune_model *model, int32_t index) {
  return info(model->program->inputs, model->program->num_inputs, index);
}

const edgetune_tensor_info *edgetune_output_info(const edgetune_model *model, int32_t index) {
  return info(model->program->outputs, model->program->num_outputs, index);
}

const edgetune_kernel_info *edgetune_kernel(const edgetune_model *model, int32_t index) {
  return index < 0 || (uint32_t)index >= model->program->num_steps ? NULL : &model->program->kernels[index];
}

static int32_t find(const edgetune_tensor_info *infos, int32_t count, const char *name) {
  for (int32_t i = 0; i < count; i++)
    if (strcmp(infos[i].name, name) == 0) return i;
  return -1;
}

int32_t edgetune_find_input(const edgetune_model *model, const char *name) {
  return find(model->program->inputs, model->program->num_inputs, name);
}

int32_t edgetune_find_output(const edgetune_model *model, const char *name) {
  return find(model->program->outputs, model->program->num_outputs, name);
}

/* Inputs and outputs follow the intermediate tensors in the arena. */
static size_t arena_size(const edgetune_program *program) {
  size_t size = aligned((size_t)program->arena_bytes);
  for (int32_t i = 0; i < program->num_inputs; i++) size += aligned(program->inputs[i].size_bytes);
  for (int32_t i = 0; i < program->num_outputs; i++) size += aligned(program->outputs[i].size_bytes);
  return size;
}

size_t edgetune_model_arena_bytes(const edgetune_model *model) { return arena_size(model->program); }

/* Put the current address of every place that lies in `space` (and there at `index`) into the tensors. */
static void set_places(edgetune_instance *instance, uint32_t space, uint64_t index, unsigned char *data) {
  const edgetune_program *program = instance->model->program;
  for (uint32_t i = 0; i < program->num_places; i++) {
    const et_place *place = &program->places[i];
    if (place->space != space) continue;
    if (space == ET_ARENA || space == ET_WEIGHTS)
      instance->tensors[i].data = data + place->offset;
    else if (place->offset == index)
      instance->tensors[i].data = data;
  }
}

static void lay_out(edgetune_instance *instance) {
  const edgetune_program *program = instance->model->program;
  unsigned char *next = instance->arena + aligned((size_t)program->arena_bytes);
  int32_t ports = program->num_inputs + program->num_outputs;
  set_places(instance, ET_ARENA, 0, instance->arena);
  set_places(instance, ET_WEIGHTS, 0, (unsigned char *)instance->model->weights);
  for (int32_t i = 0; i < ports; i++) {
    int is_input = i < program->num_inputs;
    int32_t index = is_input ? i : i - program->num_inputs;
    instance->own[i] = instance->used[i] = next;
    set_places(instance, is_input ? ET_INPUT : ET_OUTPUT, (uint64_t)index, next);
    next += aligned((is_input ? program->inputs : program->outputs)[index].size_bytes);
  }
  for (uint32_t i = 0; i < program->num_places; i++) instance->tensors[i].device_type = 1; /* kDLCPU */
  for (uint32_t i = 0; i < program->num_arguments; i++) {
    instance->arguments[i].type_index = ET_TYPE_DLTENSOR;
    instance->arguments[i].value.pointer = &instance->tensors[program->arguments[i]];
  }
}

/* Where it is large, of few large pages, where the kernel has them: a thousand page faults take a millisecond. */
static void *allocate_arena(size_t size) {
  void *arena = NULL;
  int large = size >= HUGE_PAGE;
  if (posix_memalign(&arena, large ? HUGE_PAGE : EDGETUNE_ALIGNMENT, size) != 0) return NULL;
  if (large) syscall(SYS_MADVISE, arena, size / HUGE_PAGE * HUGE_PAGE, (long)MADV_HUGEPAGE_);
  return arena;
}

static void release(edgetune_instance *instance) {
  et_pool_free(instance->pool);
  free(instance->arena);
  free(instance->own);
  free(instance->used);
  free(instance->tensors);
  free(instance->arguments);
  free(instance);
}

edgetune_status edgetune_create(edgetune_model *model, const edgetune_options *options,
                                edgetune_instance **out, edgetune_error *error) {
  static const edgetune_options defaults;
  if (model == NULL || out == NULL)
    return ET_FAIL(error, EDGETUNE_ERROR_ARGUMENT, "a pointer is NULL; give an open model and an instance");
  *out = NULL;
  if (options == NULL) options = &defaults;
  if (options->num_cores < 0 || (options->num_cores > 0 && options->cores == NULL))
    return ET_FAIL(error, EDGETUNE_ERROR_ARGUMENT, "options.cores is NULL; give num_cores numbers of cores");
  const edgetune_program *program = model->program;
  size_t ports = (size_t)program->num_inputs + (size_t)program->num_outputs, size = arena_size(program);
  edgetune_instance *instance = calloc(1, sizeof *instance);
  if (instance == NULL) return ET_FAIL(error, EDGETUNE_ERROR_MEMORY, "no memory for an instance of ", program->name);
  instance->model = model;
  instance->arena = allocate_arena(size + EDGETUNE_ALIGNMENT);
  instance->own = calloc(ports + 1, sizeof *instance->own);
  instance->used = calloc(ports + 1, sizeof *instance->used);
  instance->tensors = calloc(program->num_places + 1u, sizeof *instance->tensors);
  instance->arguments = calloc(program->num_arguments + 1u, sizeof *instance->arguments);
  if (!instance->arena || !instance->own || !instance->used || !instance->tensors || !instance->arguments) {
    char number[24];
    release(instance);
    return ET_FAIL(error, EDGETUNE_ERROR_MEMORY, "no memory for an instance of ", program->name, ", which takes ",
                   et_decimal(size, number), " bytes; free some");
  }
  memset(instance->arena, 0, size); /* so that the first run meets no page fault */
  lay_out(instance);
  int spin_us = options->spin_us == 0 ? DEFAULT_SPIN_US : options->spin_us;
  int threads = options->threads == 0 ? program->threads : options->threads;
  edgetune_error reason = {EDGETUNE_OK, ""};
  instance->pool = et_pool_create(threads, spin_us, (size_t)program->workspace_bytes, options->cores,
                                  options->num_cores, &reason);
  if (instance->pool == NULL) {
    release(instance);
    return ET_FAIL(error, reason.status, reason.message);
  }
  atomic_fetch_add(&model->users, 1);
  *out = instance;
  return EDGETUNE_OK;
}

void edgetune_free(edgetune_instance *instance) {
  if (instance == NULL) return;
  edgetune_model *model = instance->model;
  release(instance);
  edgetune_close(model);
}

static edgetune_status check_port(edgetune_instance *instance, const char *what,
                                  const edgetune_tensor_info *tensor, const void *data, size_t size) {
  char is[24], wanted[24];
  const char *model = instance->model->program->name;
  if (tensor == NULL)
    return ET_FAIL(&instance->error, EDGETUNE_ERROR_ARGUMENT, model, " has no ", what, " of this index; see edgetune_num_",
                   what, "s");
  if (data == NULL) return ET_FAIL(&instance->error, EDGETUNE_ERROR_ARGUMENT, what, " ", tensor->name, " is NULL; give its data");
  if (size != tensor->size_bytes)
    return ET_FAIL(&instance->error, EDGETUNE_ERROR_ARGUMENT, what, " ", tensor->name, " of ", model, " has ",
                   et_decimal(tensor->size_bytes, wanted), " bytes, not ", et_decimal(size, is),
                   "; give all of it in its own type");
  return EDGETUNE_OK;
}

static edgetune_status bind(edgetune_instance *instance, int is_input, int32_t index, void *data, size_t size) {
  const edgetune_program *program = instance->model->program;
  const edgetune_tensor_info *tensor = is_input ? edgetune_input_info(instance->model, index)
                                                : edgetune_output_info(instance->model, index);
  edgetune_status status = check_port(instance, is_input ? "input" : "output", tensor,
                                      data == NULL ? instance : data, data == NULL && tensor ? tensor->size_bytes : size);
  if (status != EDGETUNE_OK) return status;
  if ((uintptr_t)data % EDGETUNE_ALIGNMENT != 0)
    return ET_FAIL(&instance->error, EDGETUNE_ERROR_ARGUMENT, "the memory for ", tensor->name,
                   " does not start at a multiple of 64 bytes; align it, or use the functions that copy");
  int32_t port = is_input ? index : program->num_inputs + index;
  instance->used[port] = data == NULL ? instance->own[port] : data;
  set_places(instance, is_input ? ET_INPUT : ET_OUTPUT, (uint64_t)index, instance->used[port]);
  return EDGETUNE_OK;
}

edgetune_status edgetune_bind_input(edgetune_instance *instance, int32_t index, const void *data, size_t size) {
  return bind(instance, 1, index, (void *)data, size);
}

edgetune_status edgetune_bind_output(edgetune_instance *instance, int32_t index, void *data, size_t size) {
  return bind(instance, 0, index, data, size);
}

void *edgetune_input(edgetune_instance *instance, int32_t index) {
  return edgetune_input_info(instance->model, index) == NULL ? NULL : instance->own[index];
}

const void *edgetune_output(edgetune_instance *instance, int32_t index) {
  if (edgetune_output_info(instance->model, index) == NULL) return NULL;
  return instance->used[instance->model->program->num_inputs + index];
}

edgetune_status edgetune_set_input(edgetune_instance *instance, int32_t index, const void *data, size_t size) {
  edgetune_status status = check_port(instance, "input", edgetune_input_info(instance->model, index), data, size);
  if (status != EDGETUNE_OK) return status;
  memcpy(instance->own[index], data, size);
  return instance->used[index] == instance->own[index] ? EDGETUNE_OK : edgetune_bind_input(instance, index, NULL, 0);
}

edgetune_status edgetune_get_output(edgetune_instance *instance, int32_t index, void *data, size_t size) {
  edgetune_status status = check_port(instance, "output", edgetune_output_info(instance->model, index), data, size);
  if (status == EDGETUNE_OK) memcpy(data, edgetune_output(instance, index), size);
  return status;
}

const char *edgetune_last_error(const edgetune_instance *instance) { return instance->error.message; }

void edgetune_set_profile_hook(edgetune_instance *instance, edgetune_profile_hook hook, void *user) {
  instance->hook = hook;
  instance->hook_user = user;
}

static int call(edgetune_instance *instance, const et_step *step) {
  et_any *arguments = instance->arguments + step->first_argument, result = {0, 0, {0}};
  if (step->kernel != NULL) return step->kernel(NULL, arguments, (int32_t)step->num_arguments, &result);
  const et_tensor *from = arguments[0].value.pointer, *to = arguments[1].value.pointer;
  memcpy(to->data, from->data, (size_t)step->bytes);
  return 0;
}

static int run_steps(edgetune_instance *instance) {
  const edgetune_program *program = instance->model->program;
  if (instance->hook == NULL) {
    for (uint32_t i = 0; i < program->num_steps; i++)
      if (call(instance, &program->steps[i]) != 0) return (int)i;
    return -1;
  }
  for (uint32_t i = 0; i < program->num_steps; i++) {
    uint64_t start = et_now_ns();
    if (call(instance, &program->steps[i]) != 0) return (int)i;
    instance->hook(instance->hook_user, (int32_t)i, start, et_now_ns() - start);
  }
  return -1;
}

edgetune_status edgetune_run(edgetune_instance *instance) {
  edgetune_error reason = {EDGETUNE_OK, ""};
  void *before = et_pool_enter(instance->pool, &reason);
  int failed = run_steps(instance);
  et_pool_leave(before);
  if (failed < 0) return EDGETUNE_OK;
  return ET_FAIL(&instance->error, EDGETUNE_ERROR_KERNEL, "kernel ", instance->model->program->kernels[failed].name,
                 " failed", reason.message[0] ? ": " : "", reason.message, "; compile the model again");
}

/* The C API of an edgetune model (C99; C++ may include it too).
 *
 * A model is one shared library (model.so) or one static library (libmodel.a) with a file of weights beside
 * it, or with the weights inside. A standalone one needs libc and libm, nothing of TVM, Python or C++. One that
 * needs TVM's virtual machine has the same functions, in a model.so that finds TVM's runtime libraries beside itself.
 *
 *     edgetune_model *model;
 *     edgetune_instance *instance;
 *     edgetune_error error;
 *     if (edgetune_open("weights.bin", 0, &model, &error) != EDGETUNE_OK) { puts(error.message); return 1; }
 *     if (edgetune_create(model, NULL, &instance, &error) != EDGETUNE_OK) { puts(error.message); return 1; }
 *     edgetune_set_input(instance, 0, pixels, sizeof pixels);
 *     edgetune_run(instance);
 *     const float *scores = edgetune_output(instance, 0);
 *
 * Ownership: a model owns the weights and is shared by its instances; an instance owns its memory and its
 * threads. edgetune_close and edgetune_free may be called in any order: the weights go with the last user.
 *
 * Threads: functions of a model may be called from any thread. An instance is used by one thread at a time;
 * any number of instances run side by side. edgetune_run allocates nothing and takes no lock (with the virtual
 * machine it does both).
 *
 * Errors: a function that can fail returns a status. edgetune_open* and edgetune_create explain it in an
 * edgetune_error of the caller's (may be NULL), all others in edgetune_last_error(instance).
 *
 * Several models in one process: load each library with edgetune_library.h, or link the static libraries and
 * open each with edgetune_open_program.
 */
#ifndef EDGETUNE_H
#define EDGETUNE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define EDGETUNE_API __attribute__((visibility("default")))

/* Raised when a function or structure below changes its meaning. */
#define EDGETUNE_API_VERSION 1

/* Pointers given to edgetune_bind_input and edgetune_bind_output are multiples of this. */
#define EDGETUNE_ALIGNMENT 64

typedef enum edgetune_status {
  EDGETUNE_OK = 0,
  EDGETUNE_ERROR_ARGUMENT = 1, /* an index, a size, a pointer or an option is wrong */
  EDGETUNE_ERROR_MEMORY = 2,   /* the system gave no memory */
  EDGETUNE_ERROR_FILE = 3,     /* the file of weights cannot be opened or read */
  EDGETUNE_ERROR_DAMAGED = 4,  /* the weights are not those that the model was compiled with */
  EDGETUNE_ERROR_MACHINE = 5,  /* the CPU lacks a feature that the code uses */
  EDGETUNE_ERROR_THREADS = 6,  /* the system gave no thread */
  EDGETUNE_ERROR_KERNEL = 7    /* a kernel failed */
} edgetune_status;

typedef enum edgetune_dtype {
  EDGETUNE_BOOL = 0, /* one byte, 0 or 1 */
  EDGETUNE_INT8 = 1,
  EDGETUNE_INT16 = 2,
  EDGETUNE_INT32 = 3,
  EDGETUNE_INT64 = 4,
  EDGETUNE_UINT8 = 5,
  EDGETUNE_UINT16 = 6,
  EDGETUNE_UINT32 = 7,
  EDGETUNE_UINT64 = 8,
  EDGETUNE_FLOAT16 = 9, /* IEEE 754 binary16 */
  EDGETUNE_FLOAT32 = 10,
  EDGETUNE_FLOAT64 = 11
} edgetune_dtype;

typedef struct edgetune_error {
  edgetune_status status;
  char message[256]; /* one sentence, terminated, empty without an error */
} edgetune_error;

/* An input or output. Tensors are dense, in row-major order. */
typedef struct edgetune_tensor_info {
  const char *name;
  edgetune_dtype dtype;
  int32_t rank;
  const int64_t *shape;
  size_t size_bytes;
} edgetune_tensor_info;

/* One call of a kernel, in the order of the run; bytes: of all tensors that it reads or writes. The virtual machine
 * counts as one. */
typedef struct edgetune_kernel_info {
  const char *name;
  uint64_t bytes;
} edgetune_kernel_info;

/* What edgetune_create may be told; zero in any field means its default. */
typedef struct edgetune_options {
  int32_t threads;      /* default: what the model was compiled for. The calling thread is one of them. */
  int32_t spin_us;      /* how long idle threads wait awake for the next kernel; default 100, -1: not at all. The
                         * virtual machine's threads do as they please. */
  const int32_t *cores; /* numbers of the cores that the additional threads may run on (with the virtual machine the
                         * calling one too); default: any */
  int32_t num_cores;
} edgetune_options;

typedef struct edgetune_program edgetune_program;
typedef struct edgetune_model edgetune_model;
typedef struct edgetune_instance edgetune_instance;

/* Called after each kernel of a run, in the thread that runs: its position, when it began, how long it took. */
typedef void (*edgetune_profile_hook)(void *user, int32_t kernel, uint64_t start_ns, uint64_t duration_ns);

/* Flags of edgetune_open*: do not read all the weights to compare their checksum, only their size. */
#define EDGETUNE_NO_CHECKSUM 1u

/* ---- the library ---- */
EDGETUNE_API int32_t edgetune_api_version(void);
EDGETUNE_API const char *edgetune_version(void); /* of the edgetune that wrote the runtime */

/* ---- a model ---- */

/* Open the model of this shared library. weights_path: its weights.bin, mapped and shared between processes;
 * NULL where the weights are inside. */
EDGETUNE_API edgetune_status edgetune_open(const char *weights_path, uint32_t flags, edgetune_model **model,
                                           edgetune_error *error);

/* The same with the weights in memory (an asset of an app), at a multiple of EDGETUNE_ALIGNMENT, which must
 * stay there until the model is closed. */
EDGETUNE_API edgetune_status edgetune_open_memory(const void *weights, size_t size_bytes, uint32_t flags,
                                                  edgetune_model **model, edgetune_error *error);

/* The same for static libraries, whose edgetune_program_NAME is declared in the header of the model. */
EDGETUNE_API edgetune_status edgetune_open_program(const edgetune_program *program, const char *weights_path,
                                                   uint32_t flags, edgetune_model **model,
                                                   edgetune_error *error);
EDGETUNE_API edgetune_status edgetune_open_program_memory(const edgetune_program *program,
                                                          const void *weights, size_t size_bytes,
                                                          uint32_t flags, edgetune_model **model,
                                                          edgetune_error *error);
EDGETUNE_API void edgetune_close(edgetune_model *model);

EDGETUNE_API const char *edgetune_model_name(const edgetune_model *model);
EDGETUNE_API const char *edgetune_model_target(const edgetune_model *model); /* LLVM's triple and CPU */
EDGETUNE_API int32_t edgetune_model_threads(const edgetune_model *model);    /* the default */
EDGETUNE_API size_t edgetune_model_arena_bytes(const edgetune_model *model); /* memory of one instance */

EDGETUNE_API int32_t edgetune_num_inputs(const edgetune_model *model);
EDGETUNE_API int32_t edgetune_num_outputs(const edgetune_model *model);
EDGETUNE_API int32_t edgetune_num_kernels(const edgetune_model *model);
/* NULL for an index that does not exist; valid until the model is closed. */
EDGETUNE_API const edgetune_tensor_info *edgetune_input_info(const edgetune_model *model, int32_t index);
EDGETUNE_API const edgetune_tensor_info *edgetune_output_info(const edgetune_model *model, int32_t index);
EDGETUNE_API const edgetune_kernel_info *edgetune_kernel(const edgetune_model *model, int32_t index);
/* The index of a name, -1 where there is none. */
EDGETUNE_API int32_t edgetune_find_input(const edgetune_model *model, const char *name);
EDGETUNE_API int32_t edgetune_find_output(const edgetune_model *model, const char *name);

/* Where sizes vary, a model has a program for each combination of them, and an open one is that for the largest.
 * num_sizes: how many there are. open_size: the one at an index, 0 being the largest, as a model of its own that
 * shares the weights; close it too. */
EDGETUNE_API int32_t edgetune_num_sizes(const edgetune_model *model);
EDGETUNE_API edgetune_status edgetune_open_size(edgetune_model *model, int32_t index, edgetune_model **sized,
                                                edgetune_error *error);

/* ---- an instance ---- */
EDGETUNE_API edgetune_status edgetune_create(edgetune_model *model, const edgetune_options *options,
                                             edgetune_instance **instance, edgetune_error *error);
EDGETUNE_API void edgetune_free(edgetune_instance *instance);

/* Copy an input; size_bytes must be that of its edgetune_tensor_info. */
EDGETUNE_API edgetune_status edgetune_set_input(edgetune_instance *instance, int32_t index, const void *data,
                                                size_t size_bytes);
/* Zero copy: read an input from, or write an output to, memory of the caller, from the next run on. NULL goes
 * back to the instance's own memory. */
EDGETUNE_API edgetune_status edgetune_bind_input(edgetune_instance *instance, int32_t index, const void *data,
                                                 size_t size_bytes);
EDGETUNE_API edgetune_status edgetune_bind_output(edgetune_instance *instance, int32_t index, void *data,
                                                  size_t size_bytes);
/* The instance's own memory of an input, to write to directly. NULL for a wrong index. */
EDGETUNE_API void *edgetune_input(edgetune_instance *instance, int32_t index);

EDGETUNE_API edgetune_status edgetune_run(edgetune_instance *instance);

/* Where an output is after a run: valid until the next one. NULL for a wrong index. */
EDGETUNE_API const void *edgetune_output(edgetune_instance *instance, int32_t index);
EDGETUNE_API edgetune_status edgetune_get_output(edgetune_instance *instance, int32_t index, void *data,
                                                 size_t size_bytes);

/* The message of the last call that failed on this instance; empty where none has. */
EDGETUNE_API const char *edgetune_last_error(const edgetune_instance *instance);

/* Time every kernel of the following runs; NULL stops. */
EDGETUNE_API void edgetune_set_profile_hook(edgetune_instance *instance, edgetune_profile_hook hook, void *user);

#ifdef __cplusplus
}
#endif

#endif

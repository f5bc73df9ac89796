/* 8 threads with an instance each give what one thread gives, and a run allocates nothing and takes no lock. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>

#include "model.h"

#ifndef SPIN_US
#define SPIN_US 0 /* the default */
#endif
enum { THREADS = 8, MAX_BYTES = 1 << 20 };

static atomic_long taken;
static atomic_int counting;
#ifdef COUNT
/* These stand in front of the C library's for the whole process, the model's library included. */
void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);
void __libc_free(void *);
static void count(void) { taken += counting; }
void *malloc(size_t n) { return count(), __libc_malloc(n); }
void *calloc(size_t n, size_t m) { return count(), __libc_calloc(n, m); }
void *realloc(void *p, size_t n) { return count(), __libc_realloc(p, n); }
void free(void *p) { count(), __libc_free(p); }
int posix_memalign(void **p, size_t a, size_t n) { return count(), (*p = __libc_memalign(a, n)) ? 0 : 12; }
/* Of what waits for another thread, all that a library can call by name but the pool's own futex. */
#define COUNTED(name, type) \
  int name(type *lock) { \
    static int (*next)(type *); \
    count(); \
    if (next == NULL) next = (int (*)(type *))dlsym(RTLD_NEXT, #name); \
    return next(lock); \
  }
COUNTED(pthread_mutex_lock, pthread_mutex_t)
COUNTED(pthread_mutex_trylock, pthread_mutex_t)
COUNTED(pthread_rwlock_rdlock, pthread_rwlock_t)
COUNTED(pthread_rwlock_wrlock, pthread_rwlock_t)
COUNTED(pthread_spin_lock, pthread_spinlock_t)
COUNTED(pthread_cond_signal, pthread_cond_t)
COUNTED(pthread_cond_broadcast, pthread_cond_t)
COUNTED(pthread_barrier_wait, pthread_barrier_t)
COUNTED(sem_wait, sem_t)
COUNTED(sem_post, sem_t)
int pthread_cond_wait(pthread_cond_t *c, pthread_mutex_t *m) {
  (void)c, (void)m;
  return count(), 22; /* nobody here calls it */
}
/* The pool's: threads that have waited awake for spin_us sleep, and are woken. Nobody owns anything by it. */
static atomic_long sleeps, wakes, other_futexes;
long syscall(long number, ...) {
  static long (*next)(long, ...);
  va_list list;
  void *a[5];
  va_start(list, number);
  for (int i = 0; i < 5; i++) a[i] = va_arg(list, void *);
  va_end(list);
  if (number == SYS_futex && counting) {
    long operation = (long)a[1] & 127;
    (operation == 0 ? &sleeps : operation == 1 ? &wakes : &other_futexes)[0]++;
    if (operation > 1) count();
  }
  if (next == NULL) next = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
  return next(number, a[0], a[1], a[2], a[3], a[4]);
}
#endif

static edgetune_model *model;
static int runs;
static unsigned char expected[MAX_BYTES];
static size_t output_bytes;

static void must(edgetune_status status, const char *message) {
  if (status != EDGETUNE_OK) {
    fprintf(stderr, "%d: %s\n", status, message);
    exit(1);
  }
}

static edgetune_instance *create(int threads) {
  edgetune_error error;
  edgetune_options options = {.threads = threads, .spin_us = SPIN_US};
  edgetune_instance *instance;
  must(edgetune_create(model, &options, &instance, &error), error.message);
  for (int i = 0; i < edgetune_num_inputs(model); i++) {
    const edgetune_tensor_info *info = edgetune_input_info(model, i);
    float *values = edgetune_input(instance, i);
    for (size_t k = 0; k < info->size_bytes / sizeof(float); k++) values[k] = (float)(k % 17) / 16 + i;
  }
  return instance;
}

static void *work(void *argument) {
  edgetune_instance *instance = create(1 + (int)(size_t)argument % 3);
  for (int i = 0; i < runs; i++) {
    must(edgetune_run(instance), edgetune_last_error(instance));
    if (memcmp(edgetune_output(instance, 0), expected, output_bytes) != 0) must(99, "another result");
  }
  edgetune_free(instance);
  return NULL;
}

int main(int argc, char **argv) {
  edgetune_error error;
  pthread_t threads[THREADS];
  runs = atoi(argv[1]);
  must(edgetune_open_program(&PROGRAM, argc > 2 ? argv[2] : NULL, 0, &model, &error), error.message);
  edgetune_instance *alone = create(1), *two = create(2);
  output_bytes = edgetune_output_info(model, 0)->size_bytes;
  must(edgetune_run(alone), edgetune_last_error(alone));
  must(edgetune_run(two), edgetune_last_error(two));
  memcpy(expected, edgetune_output(alone, 0), output_bytes);
  counting = 1;
  for (int i = 0; i < 100; i++) {
    must(edgetune_run(alone), edgetune_last_error(alone));
    must(edgetune_run(two), edgetune_last_error(two));
  }
  counting = 0;
  for (size_t i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, work, (void *)i);
  for (size_t i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  edgetune_close(model);
  edgetune_free(alone);
  edgetune_free(two);
#ifdef COUNT
  fprintf(stderr, "futex: %ld sleeps, %ld wake-ups in 200 runs\n", (long)sleeps, (long)wakes);
#endif
  printf("%ld\n", (long)taken);
  return 0;
}

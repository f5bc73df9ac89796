/* Standalone models for Java and Kotlin: the native methods of org.edgetune.Model and Instance.
 *
 *     cc -shared -fPIC edgetune_jni.c -IBUNDLE -I$JAVA_HOME/include -I$JAVA_HOME/include/linux -o libedgetune_jni.so
 */
#define _POSIX_C_SOURCE 200809L
#include <jni.h>
#include <signal.h>
#include <stdlib.h>

#include "edgetune_library.h"

typedef struct {
  edgetune_library library;
  edgetune_model *model;
} opened;

#define MODEL(type, name) JNIEXPORT type JNICALL Java_org_edgetune_Model_##name
#define INSTANCE(type, name) JNIEXPORT type JNICALL Java_org_edgetune_Instance_##name

static void throw(JNIEnv *env, const char *message) {
  jclass kind = (*env)->FindClass(env, "org/edgetune/EdgetuneException");
  if (kind != NULL) (*env)->ThrowNew(env, kind, message);
}

static opened *of(jlong handle) { return (opened *)(intptr_t)handle; }
static edgetune_instance *instance_of(jlong handle) { return (edgetune_instance *)(intptr_t)handle; }

static jlong finish(JNIEnv *env, opened *found, edgetune_status status, const edgetune_error *error) {
  if (status == EDGETUNE_OK) return (jlong)(intptr_t)found;
  free(found);
  throw(env, error->message);
  return 0;
}

/* TVM's libraries, where a bundle has them, take over SIGSEGV when they are loaded, with which a JVM works: it gets it back. */
static edgetune_status load(const char *path, opened *found, int best, edgetune_error *error) {
  struct sigaction of_jvm;
  int known = sigaction(SIGSEGV, NULL, &of_jvm) == 0;
  edgetune_status status = best ? edgetune_library_open_best(path, 0, &found->library, &found->model, error)
                                : edgetune_library_load(path, &found->library, error);
  if (known) sigaction(SIGSEGV, &of_jvm, NULL);
  return status;
}

MODEL(jlong, openBest)(JNIEnv *env, jclass self, jstring folder) {
  edgetune_error error;
  opened *found = calloc(1, sizeof *found);
  const char *path = folder == NULL ? NULL : (*env)->GetStringUTFChars(env, folder, NULL);
  (void)self;
  if (found == NULL || path == NULL) {
    free(found);
    throw(env, "the folder is null, or there is no memory");
    return 0;
  }
  edgetune_status status = load(path, found, 1, &error);
  (*env)->ReleaseStringUTFChars(env, folder, path);
  return finish(env, found, status, &error);
}

MODEL(jlong, open)(JNIEnv *env, jclass self, jstring library, jstring weights) {
  edgetune_error error;
  opened *found = calloc(1, sizeof *found);
  const char *path = library == NULL ? NULL : (*env)->GetStringUTFChars(env, library, NULL);
  const char *file = weights == NULL ? NULL : (*env)->GetStringUTFChars(env, weights, NULL);
  (void)self;
  if (found == NULL || path == NULL) {
    free(found);
    throw(env, "the library is null, or there is no memory");
    return 0;
  }
  edgetune_status status = load(path, found, 0, &error);
  if (status == EDGETUNE_OK) {
    status = found->library.open(file, 0, &found->model, &error);
    if (status != EDGETUNE_OK) edgetune_library_unload(&found->library);
  }
  (*env)->ReleaseStringUTFChars(env, library, path);
  if (file != NULL) (*env)->ReleaseStringUTFChars(env, weights, file);
  return finish(env, found, status, &error);
}

MODEL(void, close)(JNIEnv *env, jclass self, jlong model) {
  opened *found = of(model);
  (void)env, (void)self;
  found->library.close(found->model);
  edgetune_library_unload(&found->library);
  free(found);
}

MODEL(jstring, name)(JNIEnv *env, jclass self, jlong model) {
  (void)self;
  return (*env)->NewStringUTF(env, of(model)->library.model_name(of(model)->model));
}

MODEL(jint, count)(JNIEnv *env, jclass self, jlong model, jboolean inputs) {
  const edgetune_library *library = &of(model)->library;
  (void)env, (void)self;
  return inputs ? library->num_inputs(of(model)->model) : library->num_outputs(of(model)->model);
}

static const edgetune_tensor_info *info_of(JNIEnv *env, jlong model, jboolean input, jint index) {
  const edgetune_library *library = &of(model)->library;
  const edgetune_tensor_info *info = input ? library->input_info(of(model)->model, index)
                                           : library->output_info(of(model)->model, index);
  if (info == NULL) throw(env, "the model has no tensor of this index");
  return info;
}

MODEL(jobject, tensor)(JNIEnv *env, jclass self, jlong model, jboolean input, jint index) {
  const edgetune_tensor_info *info = info_of(env, model, input, index);
  (void)self;
  if (info == NULL) return NULL;
  jclass kind = (*env)->FindClass(env, "org/edgetune/Tensor");
  jmethodID constructor = kind == NULL ? NULL : (*env)->GetMethodID(env, kind, "<init>", "(Ljava/lang/String;I[J)V");
  jlongArray shape = constructor == NULL ? NULL : (*env)->NewLongArray(env, info->rank);
  if (shape == NULL) return NULL;
  for (int32_t i = 0; i < info->rank; i++) {
    jlong size = info->shape[i];
    (*env)->SetLongArrayRegion(env, shape, i, 1, &size);
  }
  jstring name = (*env)->NewStringUTF(env, info->name);
  return name == NULL ? NULL : (*env)->NewObject(env, kind, constructor, name, (jint)info->dtype, shape);
}

INSTANCE(jlong, create)(JNIEnv *env, jclass self, jlong model, jint threads) {
  edgetune_error error;
  edgetune_instance *instance = NULL;
  edgetune_options options = {0};
  (void)self;
  options.threads = threads;
  if (of(model)->library.create(of(model)->model, &options, &instance, &error) != EDGETUNE_OK) {
    throw(env, error.message);
    return 0;
  }
  return (jlong)(intptr_t)instance;
}

INSTANCE(jobject, buffer)(JNIEnv *env, jclass self, jlong model, jlong instance, jboolean input, jint index) {
  const edgetune_tensor_info *info = info_of(env, model, input, index);
  const edgetune_library *library = &of(model)->library;
  (void)self;
  if (info == NULL) return NULL;
  void *data = input ? library->input(instance_of(instance), index) : (void *)library->output(instance_of(instance), index);
  return (*env)->NewDirectByteBuffer(env, data, (jlong)info->size_bytes);
}

INSTANCE(void, run)(JNIEnv *env, jclass self, jlong model, jlong instance) {
  const edgetune_library *library = &of(model)->library;
  (void)self;
  if (library->run(instance_of(instance)) != EDGETUNE_OK) throw(env, library->last_error(instance_of(instance)));
}

INSTANCE(void, free)(JNIEnv *env, jclass self, jlong model, jlong instance) {
  (void)env, (void)self;
  of(model)->library.free(instance_of(instance));
}

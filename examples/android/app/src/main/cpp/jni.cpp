// The native methods of org.edgetune.example.Classifier.
#include <jni.h>

#include "classifier.hpp"

namespace {

void raise(JNIEnv *env, const char *message) {
  if (jclass kind = env->FindClass("java/lang/IllegalStateException")) env->ThrowNew(kind, message);
}

Classifier *of(jlong handle) { return reinterpret_cast<Classifier *>(handle); }

}  // namespace

extern "C" {

JNIEXPORT jlong JNICALL Java_org_edgetune_example_Classifier_open(JNIEnv *env, jclass, jint threads) try {
  return reinterpret_cast<jlong>(new Classifier("libclassifier.so", threads));
} catch (const std::exception &error) {
  raise(env, error.what());
  return 0;
}

JNIEXPORT jfloat JNICALL Java_org_edgetune_example_Classifier_turned(JNIEnv *env, jclass, jlong handle,
                                                                     jfloatArray image) try {
  if (static_cast<size_t>(env->GetArrayLength(image)) != of(handle)->values()) {
    raise(env, "the image has another number of values than the model takes");
    return 0;
  }
  jfloat *values = env->GetFloatArrayElements(image, nullptr);
  if (values == nullptr) return 0;
  jfloat result = 0;
  std::string failed;
  try {
    result = of(handle)->turned(values);
  } catch (const std::exception &error) {
    failed = error.what();
  }
  env->ReleaseFloatArrayElements(image, values, JNI_ABORT);
  if (!failed.empty()) raise(env, failed.c_str());
  return result;
} catch (const std::exception &error) {
  raise(env, error.what());
  return 0;
}

JNIEXPORT void JNICALL Java_org_edgetune_example_Classifier_close(JNIEnv *, jclass, jlong handle) { delete of(handle); }
}

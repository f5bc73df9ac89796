// PP-OCR's text direction classifier as an object; nothing of Android in it.
#pragma once

#include <cstddef>
#include <string>

#include "edgetune.hpp"

class Classifier {
 public:
  // library: a path, or the name of one that the app brought ("libclassifier.so").
  explicit Classifier(const std::string &library, int threads = 0);

  size_t values() const;  // that an image has

  // The probability that the text stands on its head; throws edgetune::Error.
  float turned(const float *image);

 private:
  edgetune::Model model_;
  edgetune::Instance instance_;
};

#include "classifier.hpp"

Classifier::Classifier(const std::string &library, int threads)
    : model_(edgetune::Model::load_library(library, nullptr)), instance_(model_, threads) {}

size_t Classifier::values() const { return model_.input(0).size_bytes / sizeof(float); }

float Classifier::turned(const float *image) {
  instance_.set_input(0, image, values() * sizeof(float));
  instance_.run();
  return instance_.output<float>(0)[1];
}

/* Messages, without the C library's formatting. */
#include "internal.h"

edgetune_status et_fail(edgetune_error *error, edgetune_status status, const char *const *parts) {
  if (error == NULL) return status;
  size_t used = 0;
  for (; *parts != NULL; parts++)
    for (const char *c = *parts; *c != 0 && used + 1 < sizeof error->message; c++) error->message[used++] = *c;
  error->message[used] = 0;
  error->status = status;
  return status;
}

const char *et_decimal(uint64_t number, char buffer[24]) {
  char *start = buffer + 23;
  *start = 0;
  do {
    *--start = (char)('0' + number % 10);
    number /= 10;
  } while (number != 0);
  return start;
}

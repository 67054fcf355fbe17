// os_log: accepted, prints nothing.
#pragma once
#include "hm_spaces.h"
#pragma clang system_header

namespace metal {

struct os_log {
  HM_FUNC constexpr os_log(HM_TEXT, HM_TEXT) constant {}
  template <class... A> HM_FUNC void log(A...) const {}
  template <class... A> HM_FUNC void log_debug(A...) const {}
  template <class... A> HM_FUNC void log_info(A...) const {}
  template <class... A> HM_FUNC void log_error(A...) const {}
  template <class... A> HM_FUNC void log_fault(A...) const {}
  template <class... A> HM_FUNC void log(A...) const constant {}
  template <class... A> HM_FUNC void log_debug(A...) const constant {}
  template <class... A> HM_FUNC void log_info(A...) const constant {}
  template <class... A> HM_FUNC void log_error(A...) const constant {}
  template <class... A> HM_FUNC void log_fault(A...) const constant {}
};
constant constexpr os_log os_log_default("", "");

}  // namespace metal

// The Python module: one bind_* function for each layer, conversions only.
#include <nanobind/nanobind.h>

namespace nb = nanobind;

void bind_kernels(nb::module_& m);
void bind_hadamard(nb::module_& m);
void bind_narrow(nb::module_& m);
void bind_report(nb::module_& m);
void bind_engine(nb::module_& m);
void bind_sim(nb::module_& m);

NB_MODULE(_core, m) {
  m.doc() = "The C++ core of optireduce. Use the package's Python classes instead.";
  bind_kernels(m);
  bind_hadamard(m);
  bind_narrow(m);
  bind_report(m);
  bind_engine(m);
  bind_sim(m);
}

# Warnings for our own targets. Torch's headers are SYSTEM and stay quiet.
add_library(convoy_warnings INTERFACE)
target_compile_options(convoy_warnings INTERFACE
  -Wall -Wextra -Wshadow -Wconversion -Wnon-virtual-dtor -Wno-sign-conversion
  $<$<BOOL:${CONVOY_WERROR}>:-Werror>)

# CONVOY_SANITIZE=address (with undefined) or thread, for every target of the build.
if(CONVOY_SANITIZE STREQUAL "address")
  # Not vptr: it looks at memory through a pipe, and where a test has used up all descriptors it
  # takes a live object for a dead one.
  add_compile_options(-fsanitize=address,undefined -fno-sanitize=vptr
    -fno-sanitize-recover=undefined
    -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
elseif(CONVOY_SANITIZE STREQUAL "thread")
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer)
  add_link_options(-fsanitize=thread)
elseif(CONVOY_SANITIZE)
  message(FATAL_ERROR "CONVOY_SANITIZE is '${CONVOY_SANITIZE}'; it takes 'address' or 'thread'")
endif()

# Writes OUTPUT from TEMPLATE with the commit of SOURCE_DIR, if that changes it.
set(COMMIT unknown)
if(EXISTS "${SOURCE_DIR}/.git")
  find_program(git git)
  if(git)
    execute_process(COMMAND "${git}" -C "${SOURCE_DIR}" rev-parse --short=12 HEAD
      OUTPUT_VARIABLE head OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE result)
    if(result EQUAL 0)
      set(COMMIT "${head}")
      execute_process(COMMAND "${git}" --no-optional-locks -C "${SOURCE_DIR}" diff --quiet HEAD --
        RESULT_VARIABLE changed ERROR_QUIET)
      if(changed)
        string(APPEND COMMIT "-dirty")
      endif()
    endif()
  endif()
endif()
configure_file("${TEMPLATE}" "${OUTPUT}" @ONLY)

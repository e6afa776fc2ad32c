/*
 * fuzz.h: what the libFuzzer targets of this folder share.
 *
 * A target is fuzz_NAME.c with its first inputs in seeds/NAME/; `make fuzz` finds it by its name.
 * Files exist in memory only, each before a page that may not be touched, so that a read past the
 * end is seen that a mapping's last page would hide. Most of what we parse is JSON:
 * fuzz_mutate_json changes values and keys, and leaves the syntax to the plain mutations.
 */
#ifndef OFFSHOOT_TESTS_FUZZ_FUZZ_H
#define OFFSHOOT_TESTS_FUZZ_FUZZ_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

/* libFuzzer's side. The target and its mutator are called by it. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);

/* A LLVMFuzzerCustomMutator for input that is JSON, or meant to be. */
size_t fuzz_mutate_json(uint8_t *data, size_t size, size_t max_size, unsigned seed);

/*
 * Makes FUZZ_DIR/name hold these bytes for mapped_file_open, mapped_file_open_up_to, which has no
 * bound here, and file_is_in; fuzz_files_clear removes all files. Other paths outside FUZZ_DIR are
 * those of the system.
 */
#define FUZZ_DIR "in-memory"
void fuzz_file(const char *name, const void *data, size_t size);
void fuzz_file_json(const char *name, const json_t *value);
void fuzz_file_safetensors(const char *name, const json_t *header, const void *data, size_t size);
void fuzz_files_clear(void);

/*
 * Adds to the vocabulary of a tokenizer.json the symbols of GPT-2's alphabet that it lacks, byte b
 * with id first + b: bytes that print stand for themselves, the others for U+0100 up.
 */
void fuzz_byte_symbols(json_t *vocab, json_int_t first);

/* Ends the process, which libFuzzer reports as a crash, when something that must hold does not. */
#define FUZZ_CHECK(fact) ((fact) ? (void)0 : __builtin_trap())

#endif

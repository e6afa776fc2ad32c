/*
 * hub_folder.h: the folder of what the user names: a path, or a repository of the Hugging Face Hub.
 */
#ifndef OFFSHOOT_BASE_HUB_FOLDER_H
#define OFFSHOOT_BASE_HUB_FOLDER_H

#include "base/error.h"

/*
 * A copy of name; or, where there is nothing of that name and it is one of the Hugging Face Hub,
 * "owner/repository", the snapshot that its programs (hf download, transformers, vLLM) keep of the
 * branch main in their cache, and *of_hub is 1. The cache is $HF_HUB_CACHE, $HF_HOME/hub,
 * $XDG_CACHE_HOME/huggingface/hub or ~/.cache/huggingface/hub. To be freed with mem_free; NULL and
 * an Error when neither is there. Nothing is downloaded.
 */
char *hub_folder(const char *name, int *of_hub, Error *err);

#endif

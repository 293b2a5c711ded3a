// What llama.cpp makes of a file, for proof.py.
//
//   proof quantize IN OUT FTYPE     llama_model_quantize, without an importance matrix
//   proof greedy FILE N ID...       the N most likely tokens after ids, one after another
//   proof loss FILE TEXT WINDOW N   the mean loss of N windows of a text's tokens
#include "ggml-backend.h"
#include "llama.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void quiet(enum ggml_log_level level, const char *text, void *data) {
  if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

static int best(const float *x, int n) {
  int at = 0;
  for (int i = 1; i < n; i++)
    if (x[i] > x[at]) at = i;
  return at;
}

static struct llama_context *context(struct llama_model *m, int n) {
  struct llama_context_params c = llama_context_default_params();
  c.n_ctx = c.n_batch = c.n_ubatch = n;
  c.n_threads = c.n_threads_batch = 1;
  return llama_init_from_model(m, c);
}

int main(int n, char **v) {
  ggml_backend_load_all_from_path(getenv("LLAMA_LIB"));
  llama_log_set(quiet, NULL);
  if (!strcmp(v[1], "quantize")) {
    struct llama_model_quantize_params p = llama_model_quantize_default_params();
    p.ftype = atoi(v[4]);
    p.nthread = 2;
    return llama_model_quantize(v[2], v[3], &p);
  }
  struct llama_model_params p = llama_model_default_params();
  p.n_gpu_layers = 0;
  struct llama_model *m = llama_model_load_from_file(v[2], p);
  if (!m) return 1;
  const struct llama_vocab *vocab = llama_model_get_vocab(m);
  int size = llama_vocab_n_tokens(vocab);
  if (!strcmp(v[1], "greedy")) {
    struct llama_context *c = context(m, 128);
    llama_token ids[128];
    int have = 0;
    for (int i = 4; i < n; i++) ids[have++] = atoi(v[i]);
    if (llama_decode(c, llama_batch_get_one(ids, have))) return 1;
    for (int i = 0; i < atoi(v[3]); i++) {
      llama_token next = best(llama_get_logits_ith(c, -1), size);
      printf("%d ", next);
      if (llama_decode(c, llama_batch_get_one(&next, 1))) return 1;
    }
    return 0;
  }
  int window = atoi(v[4]), windows = atoi(v[5]), want = window * windows;
  FILE *f = fopen(v[3], "rb");
  static char text[1 << 20];
  int bytes = fread(text, 1, sizeof text, f);
  llama_token *ids = malloc(sizeof(llama_token) * (bytes + 8));
  int have = llama_tokenize(vocab, text, bytes, ids, bytes + 8, false, false);
  if (have < want) return fprintf(stderr, "%d tokens, want %d\n", have, want), 1;
  struct llama_batch b = llama_batch_init(window, 0, 1);
  struct llama_context *c = context(m, window);
  double loss = 0;
  for (int w = 0; w < windows; w++) {
    llama_memory_clear(llama_get_memory(c), true);
    b.n_tokens = window;
    for (int i = 0; i < window; i++) {
      b.token[i] = ids[w * window + i];
      b.pos[i] = i;
      b.n_seq_id[i] = 1;
      b.seq_id[i][0] = 0;
      b.logits[i] = 1;
    }
    if (llama_decode(c, b)) return 1;
    for (int i = 0; i + 1 < window; i++) {
      const float *x = llama_get_logits_ith(c, i);
      double top = x[best(x, size)], sum = 0;
      for (int k = 0; k < size; k++) sum += exp(x[k] - top);
      loss += top + log(sum) - x[ids[w * window + i + 1]];
    }
  }
  printf("%.6f\n", loss / (windows * (window - 1)));
  return 0;
}

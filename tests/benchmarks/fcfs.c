/* The FCFS loop of the default engine in plain C, one batch at a time: a yardstick for `make bench`, used nowhere else.
   Built with gcc -O3 -march=native -ffp-contract=off (a fused multiply-add would round otherwise than the engine). */
#include <stdint.h>

typedef struct { int64_t id, rest; } share;

/* Fills start and finish (n each) and returns the number of batches. `decoding` has room for every request in flight. */
int64_t fcfs(int64_t n, const double *arrival, const int64_t *prompt, const int64_t *response, double *start,
             double *finish, share *decoding, int64_t budget, int64_t block, double kv_safe, double c0, double a,
             double knee)
{
    double t = arrival[0];
    int64_t batches = 0, arrived = 0, begun = 0, done = 0, many = 0, partial = -1, prompt_left = 0, live = 0;
    while (done < n) {
        if (many == 0 && partial < 0 && begun == arrived && arrival[arrived] > t)
            t = arrival[arrived];
        while (arrived < n && arrival[arrived] <= t)
            arrived++;
        int64_t left = budget, finished = 0, joining = many;
        for (int64_t i = 0; i < many && left > 0; i++) {
            int64_t take = block < decoding[i].rest ? block : decoding[i].rest;
            take = take < left ? take : left;
            decoding[i].rest -= take;
            left -= take;
            finished += decoding[i].rest == 0;
        }
        live += budget - left;
        if (partial >= 0) {
            int64_t take = prompt_left < left ? prompt_left : left;
            left -= take, live += take, prompt_left -= take;
            if (prompt_left == 0) {
                decoding[joining].id = partial, decoding[joining++].rest = response[partial];
                partial = -1;
            }
        }
        while (left > 0 && begun < arrived) {
            if (live + prompt_left + prompt[begun] > kv_safe)
                break;
            int64_t r = begun++, take = prompt[r] < left ? prompt[r] : left;
            start[r] = t;
            left -= take, live += take;
            if (take == prompt[r])
                decoding[joining].id = r, decoding[joining++].rest = response[r];
            else
                partial = r, prompt_left = prompt[r] - take;
        }
        double over = (double)(budget - left) - knee;
        t += c0 + a * (over > 0 ? over : 0);
        if (finished) {
            int64_t kept = 0;
            for (int64_t i = 0; i < joining; i++) {
                int64_t r = decoding[i].id;
                if (decoding[i].rest == 0)
                    finish[r] = t, live -= prompt[r] + response[r];
                else
                    decoding[kept++] = decoding[i];
            }
        }
        many = joining - finished;
        done += finished;
        batches++;
    }
    return batches;
}

#!/bin/sh
# Gradient descent on a noisy parabola: ./descend.sh RATE STEPS SEED. It writes the losses to log.csv.
awk -v rate="$1" -v steps="$2" -v seed="$3" 'BEGIN {
    srand(1000 + seed)
    print "step,loss"
    x = 1 + rand()
    for (step = 1; step <= steps; step++) {
        x -= rate * 2 * (x + (rand() - 0.5) / 10)
        printf "%d,%.6f\n", step, x * x
    }
}' > log.csv

# R's glm on made rows, as JSON: what tests/oracles/test_r_glm.py compares with a training of ours.
# `make r-oracle` runs this script and compares its output with glm.json. It needs nothing but base R.

n <- 4000
# Numbers in [0, 1) that every language makes alike: the fractional parts of multiples of a square root.
u <- function(k) (seq_len(n) * sqrt(k)) %% 1

amount <- exp(qnorm(u(2)))
late <- floor(4 * u(3)^2)
region <- 1 + (u(5) > 0.45) + (u(5) > 0.8)
age <- 20 + 50 * u(7)
unemployed <- as.numeric(u(11) >= 0.7)
score <- -0.9 + 0.25 * amount + 0.5 * late + 0.4 * (region == 3) - 0.03 * age - 0.3 * unemployed
positive <- as.numeric(u(13) < plogis(score))
weight <- 1 + floor(3 * u(17))

number <- function(x) trimws(formatC(x, digits = 10, format = "g"))
vector <- function(x) paste0("[", paste(number(x), collapse = ", "), "]")

describe <- function(fit) {
  # The constant comes last, as in the project.
  order <- c(2:length(coef(fit)), 1)
  table <- summary(fit)$coefficients[order, ]
  fields <- c(
    coef = vector(table[, "Estimate"]),
    std_error = vector(table[, "Std. Error"]),
    z = vector(table[, "z value"]),
    p_value = vector(table[, "Pr(>|z|)"]),
    lower = vector(confint.default(fit)[order, 1]),
    upper = vector(confint.default(fit)[order, 2]),
    deviance = number(deviance(fit)),
    null_deviance = number(fit$null.deviance),
    aic = number(deviance(fit) + 2 * length(coef(fit))),
    bic = number(deviance(fit) + log(n) * length(coef(fit))),
    likelihood_ratio = number(fit$null.deviance - deviance(fit)),
    likelihood_ratio_p = number(pchisq(fit$null.deviance - deviance(fit), length(coef(fit)) - 1, lower.tail = FALSE))
  )
  paste0("{\n", paste0('    "', names(fields), '": ', fields, collapse = ",\n"), "\n  }")
}

# The host centres its terms.
centred <- function(x) x - mean(x)
host <- sapply(list(amount, late, region == 2, region == 3), centred)
# Weights count relative to their mean, as in the project.
relative <- weight / mean(weight)
control <- glm.control(epsilon = 1e-14, maxit = 50)
formula <- positive ~ host + age + unemployed
plain <- glm(formula, family = binomial, control = control)
# Weights that are not whole numbers make R warn, because it takes them for numbers of trials.
weighted <- suppressWarnings(glm(formula, family = binomial, weights = relative, control = control))

cat("{\n")
cat('  "n_positive": ', sum(positive), ",\n", sep = "")
cat('  "sums": ', vector(c(sum(amount), sum(late), sum(age), sum(weight))), ",\n", sep = "")
cat('  "plain": ', describe(plain), ",\n", sep = "")
cat('  "weighted": ', describe(weighted), "\n", sep = "")
cat("}\n")

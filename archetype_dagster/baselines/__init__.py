"""The strategies of the paper's Table 1: rules and learners, trained and judged on the same bars and costs."""

"""How certain a backtest's result is, and how much of it is luck or the number of things tried."""

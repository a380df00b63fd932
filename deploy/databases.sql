-- Run once by PostgreSQL's image, beside the database `dagster` that it makes by itself.
CREATE DATABASE mlflow;
CREATE DATABASE optuna;
